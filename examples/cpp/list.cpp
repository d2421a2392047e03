// list.cpp - the persistent list of the paper (Fig. 1) in C++: no mark to forget, no unlock to misplace.
//
//     list POOL insert KEY VALUE      appends, and is durable when the command returns
//     list POOL dump                  prints KEY VALUE, a line each, in order of insertion
//     list POOL fill N                appends 0..N-1, four threads; prints "durable COUNT" now and then
//
//     c++ -std=c++17 list.cpp $(pkg-config --cflags --libs towa) -pthread -o list
//
// It reads the pools of list.c and writes pools that list.c reads: same layout, same root, same type name.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <towa.hpp>
#include <vector>

struct node {
    towa::p<std::int64_t> key, value;
    towa::p<node *> next;
};

struct list {
    towa::p<node *> head, tail;
    towa::p<std::uint64_t> count;
};

// What list.c calls it.
template <> struct towa::type_name<list> {
    static std::string get() { return "struct list"; }
};

// Locks live in ordinary memory: after a crash there is nobody to unlock one in the pool.
static std::mutex list_lock;

// The paper's insert. Throws towa::out_of_space when the heap is full; the list is then as before.
static void insert(towa::thread &me, list *l, std::int64_t key, std::int64_t value) {
    towa::transaction tx(me, list_lock); // locks, then starts; ends, then unlocks
    node *n = towa::make<node>(tx, node{key, value, nullptr});
    if (l->tail)
        l->tail->next = n;
    else
        l->head = n;
    l->tail = n;
    ++l->count;
}

// The list of the pool; the first time, an empty one.
static list *open_list(towa::pool &pool, towa::thread &me) {
    if (list *l = pool.root<list>("list"))
        return l;
    towa::transaction tx(me);
    list *l = towa::make<list>(tx);
    tx.set_root("list", l);
    return l;
}

// Prints the list; fails if it is not one.
static int dump(const list *l) {
    std::uint64_t seen = 0;
    const node *last = nullptr;
    for (const node *n = l->head; n; last = n, n = n->next, ++seen)
        std::printf("%lld %lld\n", static_cast<long long>(n->key), static_cast<long long>(n->value));
    if (seen == l->count && last == l->tail)
        return 0;
    std::fprintf(stderr, "list: damaged: %llu nodes, expected %llu; tail %s\n", static_cast<unsigned long long>(seen),
                 static_cast<unsigned long long>(l->count), last == l->tail ? "right" : "wrong");
    return 1;
}

static void fill(towa::pool &pool, list *l, std::int64_t first, std::int64_t step, std::int64_t end) {
    towa::thread me(pool);
    std::int64_t done = 0;
    for (std::int64_t i = first; i < end; i += step) {
        insert(me, l, i, i * i);
        if (first == 0 && ++done % 500 == 0) {
            std::uint64_t count;
            {
                std::lock_guard<std::mutex> hold(list_lock);
                count = l->count;
            }
            pool.sync(); // whatever was in the list before the call is durable after it
            std::printf("durable %llu\n", static_cast<unsigned long long>(count));
            std::fflush(stdout);
        }
    }
}

int main(int argc, char **argv) try {
    const std::string verb = argc > 2 ? argv[2] : "";
    if (!(verb == "insert" && argc == 5) && !(verb == "dump" && argc == 3) && !(verb == "fill" && argc == 4)) {
        std::fprintf(stderr, "usage: list POOL insert KEY VALUE | list POOL dump | list POOL fill N\n");
        return 2;
    }
    towa::options options;
    options.heap_len = 256u << 20;
    towa::pool pool(argv[1], options);
    list *l = nullptr;
    int status = 0;
    {
        towa::thread me(pool);
        l = open_list(pool, me);
        if (verb == "insert")
            insert(me, l, std::stoll(argv[3]), std::stoll(argv[4]));
    }
    if (verb == "dump")
        status = dump(l);
    if (verb == "fill") {
        std::vector<std::thread> threads;
        for (int i = 0; i < 4; i++)
            threads.emplace_back([&, i] { fill(pool, l, i, 4, std::stoll(argv[3])); });
        for (auto &t : threads)
            t.join();
    }
    pool.close(); // makes the last epoch durable, and says so if it could not
    return status;
} catch (const std::exception &e) {
    std::fprintf(stderr, "list: %s\n", e.what());
    return 1;
}
