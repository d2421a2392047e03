// map.cpp - an ordered map in the heap, used as std::map is.
//
//     map POOL set KEY VALUE      VALUE of at most 63 bytes
//     map POOL get KEY
//     map POOL del KEY
//     map POOL dump               KEY VALUE, a line each, in order of keys
//     map POOL churn N            inserts and deletes for ever among N keys; prints "durable ROUND" now and then
//
//     c++ -std=c++17 map.cpp $(pkg-config --cflags --libs towa) -o map
//
// Why not std::map with an allocator? Its nodes are written by the standard library, which marks nothing. What it takes is a map
// whose fields are towa::p<T>; this one, a treap, is 80 lines, and none of them says `mark`. (Need a map, not an example? Then take
// towa::map.)
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <random>
#include <stdexcept>
#include <string>
#include <towa.hpp>

// A tree ordered by key and, as a heap, by a random priority: balanced on average.
template <class K, class V> class treap {
  public:
    // The value of `key`, or nullptr.
    const V *find(const K &key) const {
        const node *n = root_;
        while (n && !(n->key == key))
            n = key < n->key ? n->left : n->right;
        return n ? &n->value.get() : nullptr;
    }
    // Inserts or replaces; whether it was new.
    bool set(towa::tx &tx, const K &key, const V &value) {
        for (node *n = root_; n; n = key < n->key ? n->left : n->right)
            if (n->key == key) {
                n->value = value;
                return false;
            }
        node *n = towa::make<node>(tx, node{key, value, random_(), nullptr, nullptr});
        towa::p<node *> *at = &root_;
        while (*at && (*at)->priority > n->priority)
            at = key < (*at)->key ? &(*at)->left : &(*at)->right;
        split(*at, key, n->left, n->right);
        *at = n;
        ++size_;
        return true;
    }
    // Removes; whether it was there.
    bool erase(towa::tx &tx, const K &key) {
        towa::p<node *> *at = &root_;
        while (*at && !((*at)->key == key))
            at = key < (*at)->key ? &(*at)->left : &(*at)->right;
        node *gone = *at;
        if (!gone)
            return false;
        *at = merge(gone->left, gone->right);
        towa::destroy(tx, gone);
        --size_;
        return true;
    }
    std::uint64_t size() const { return size_; }
    // Calls visit(key, value) in order of keys; throws if the tree is not one.
    template <class F> void for_each(F visit) const {
        std::uint64_t seen = 0;
        walk(root_, nullptr, nullptr, seen, visit);
        if (seen != size_)
            throw std::runtime_error("damaged: another number of nodes than counted");
    }

  private:
    struct node {
        towa::p<K> key;
        towa::p<V> value;
        towa::p<std::uint32_t> priority;
        towa::p<node *> left, right;
    };
    // Nodes below `key` to `low`, the others to `high`.
    static void split(node *n, const K &key, towa::p<node *> &low, towa::p<node *> &high) {
        towa::p<node *> *l = &low, *h = &high;
        while (n) {
            if (n->key < key) {
                *l = n;
                l = &n->right;
                n = n->right;
            } else {
                *h = n;
                h = &n->left;
                n = n->left;
            }
        }
        *l = nullptr;
        *h = nullptr;
    }
    static node *merge(node *a, node *b) {
        if (!a || !b)
            return a ? a : b;
        if (a->priority > b->priority) {
            a->right = merge(a->right, b);
            return a;
        }
        b->left = merge(a, b->left);
        return b;
    }
    template <class F> static void walk(const node *n, const K *above, const K *below, std::uint64_t &seen, F &visit) {
        if (!n)
            return;
        if ((above && !(*above < n->key)) || (below && !(n->key < *below)))
            throw std::runtime_error("damaged: keys out of order");
        walk(n->left, above, &n->key.get(), seen, visit);
        visit(n->key.get(), n->value.get());
        seen++;
        walk(n->right, &n->key.get(), below, seen, visit);
    }
    static std::uint32_t random_() {
        static std::mt19937 generator{std::random_device{}()};
        return static_cast<std::uint32_t>(generator());
    }

    towa::p<node *> root_;
    towa::p<std::uint64_t> size_;
};

// A word that fits in place: what the heap holds must not own memory elsewhere, as std::string does.
struct word {
    char text[64];
    word(const std::string &s = "") : text{} {
        if (s.size() >= sizeof text)
            throw std::length_error("a word has at most 63 bytes");
        std::memcpy(text, s.data(), s.size());
    }
    friend bool operator<(const word &a, const word &b) { return std::strcmp(a.text, b.text) < 0; }
    friend bool operator==(const word &a, const word &b) { return std::strcmp(a.text, b.text) == 0; }
};

using words = treap<word, word>;

// The layout's name in the pool; to be changed when `word` or `treap` change.
template <> struct towa::type_name<words> {
    static std::string get() { return "examples/map words 1"; }
};

static std::mutex map_lock;

// One transaction moves a pair of keys: whoever reads the map finds both, or neither.
static void churn(towa::pool &pool, towa::thread &me, words *map, unsigned keys) {
    std::mt19937 random{std::random_device{}()};
    for (std::uint64_t round = 1;; round++) {
        const std::string k = std::to_string(random() % keys), v = std::to_string(round);
        {
            towa::transaction tx(me, map_lock);
            if (map->find("left " + k)) {
                map->erase(tx, "left " + k);
                map->erase(tx, "right " + k);
            } else {
                map->set(tx, "left " + k, v);
                map->set(tx, "right " + k, v);
            }
            map->set(tx, std::string("round"), v);
        }
        if (round % 1000 == 0) {
            pool.sync();
            std::printf("durable %llu\n", static_cast<unsigned long long>(round));
            std::fflush(stdout);
        }
    }
}

static int run(towa::pool &pool, const std::string &verb, const std::string &key, const std::string &value) {
    towa::thread me(pool);
    words *map = pool.root<words>("words");
    if (!map) {
        towa::transaction tx(me);
        map = towa::make<words>(tx);
        tx.set_root("words", map);
    }
    if (verb == "set") {
        towa::transaction tx(me, map_lock);
        map->set(tx, key, value);
    } else if (verb == "get") {
        const word *found = map->find(key);
        if (!found)
            return 1;
        std::printf("%s\n", found->text);
    } else if (verb == "del") {
        towa::transaction tx(me, map_lock);
        return map->erase(tx, key) ? 0 : 1;
    } else if (verb == "dump") {
        map->for_each([](const word &k, const word &v) { std::printf("%s %s\n", k.text, v.text); });
    } else {
        churn(pool, me, map, static_cast<unsigned>(std::stoul(key)));
    }
    return 0;
}

int main(int argc, char **argv) try {
    const std::string verb = argc > 2 ? argv[2] : "";
    const int arguments = verb == "set" ? 2 : verb == "get" || verb == "del" || verb == "churn" ? 1 : verb == "dump" ? 0 : -1;
    if (argc != 3 + arguments) {
        std::fprintf(stderr, "usage: map POOL set KEY VALUE | get KEY | del KEY | dump | churn N\n");
        return 2;
    }
    towa::options options;
    options.heap_len = 256u << 20;
    towa::pool pool(argv[1], options);
    const int status = run(pool, verb, argc > 3 ? argv[3] : "", argc > 4 ? argv[4] : "");
    pool.close(); // makes the last epoch durable, and says so if it could not
    return status;
} catch (const std::exception &e) {
    std::fprintf(stderr, "map: %s\n", e.what());
    return 1;
}
