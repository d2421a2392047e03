// behaviour.cpp - what towa.hpp adds to towa.h, checked. `behaviour POOL TEST` runs one test in a fresh pool and exits with 0 if it
// holds.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <thread>
#include <towa.hpp>
#include <vector>

#include "expect.hpp"

struct item {
    towa::p<long> a, b;
    towa::p<item *> next;
};
struct throws {
    explicit throws(int) { throw std::domain_error("constructor"); }
    char space[4000];
};

static towa::options small() {
    towa::options o;
    o.heap_len = 16u << 20;
    return o;
}

static void test_p() {
    towa::pool pool(path, small());
    towa::thread me(pool);
    item *i;
    {
        towa::transaction tx(me);
        i = towa::make<item>(tx, item{1, 2, nullptr});
        tx.set_root("item", i);
        i->a = 5;
        i->a += 2;
        i->a *= 3;
        i->b = i->a;
        EXPECT(i->a == 21 && i->b == 21 && i->a + 1 == 22 && i->a++ == 21 && ++i->a == 23);
        i->a -= 3, i->a /= 4, i->a %= 3, i->a |= 4, i->a ^= 1, i->a &= 6, i->a <<= 3, i->a >>= 1;
        EXPECT(i->a == ((((((20 / 4) % 3) | 4) ^ 1) & 6) << 3) >> 1);
        i->next = i;
        EXPECT(i->next->b == 21 && (*i->next).b == 21 && i->next);
        i->a = 1, i->b = 2;
        swap(i->a, i->b);
        EXPECT(i->a == 2 && i->b == 1);
        item copy = *i; // on the stack: marks nothing, minds nothing
        copy.a = 9;
        copy = *i;
        EXPECT(copy.a == 2);
        EXPECT(tx.epoch() > 0);
    }
    EXPECT_THROW(towa::usage_error, i->a = 3); // outside a transaction: refused, and not written
    EXPECT(i->a == 2);
    pool.sync();
}

// What p<T> wrote is kept: nothing was left unmarked.
static void test_p_is_kept() {
    {
        towa::pool pool(path, small());
        towa::thread me(pool);
        item *i = nullptr;
        for (long n = 0; n < 300; n++) {
            towa::transaction tx(me);
            if (n == 0) {
                i = towa::make<item>(tx);
                tx.set_root("item", i);
            }
            item *fresh = towa::make<item>(tx, item{n, -n, i->next});
            i->next = fresh;
            i->a = n;
            if (n % 50 == 0) {
                tx.commit();
                pool.sync(); // so that later writes fall in later epochs
            }
        }
    }
    towa::pool pool(path, small());
    const item *i = pool.root<item>("item");
    EXPECT(i && i->a == 299);
    long n = 299;
    for (const item *at = i->next; at; at = at->next, n--)
        EXPECT(at->a == n && at->b == -n);
    EXPECT(n == -1);
}

static void test_exceptions_roll_back() {
    towa::pool pool(path, small());
    towa::thread me(pool);
    item *i;
    {
        towa::transaction tx(me);
        i = towa::make<item>(tx, item{1, 2, nullptr});
        tx.set_root("item", i);
    }
    std::uint64_t used = 0;
    std::mutex m;
    for (int round = 0; round < 50; round++) {
        if (round == 1) // blocks kept ready for the thread count as used from the first time on
            used = pool.stats().heap_used;
        try {
            towa::transaction tx(me, m);
            i->a = 100;
            i->next = towa::make<item>(tx, item{7, 7, nullptr});
            tx.set_root<item>("item", nullptr);
            throw std::runtime_error("mine");
        } catch (const std::runtime_error &e) {
            EXPECT(std::string(e.what()) == "mine");
        }
        EXPECT(m.try_lock());
        m.unlock();
        EXPECT(i->a == 1 && !i->next && pool.root<item>("item") == i);
    }
    EXPECT(pool.stats().heap_used == used);
    for (int round = 0; round < 500; round++) {
        // An exception caught inside does not end it.
        towa::transaction tx(me);
        EXPECT_THROW(std::domain_error, towa::make<throws>(tx, 1));
        i->b = 3;
    }
    EXPECT(i->b == 3);
    EXPECT(pool.stats().heap_used < used + (1u << 20)); // what the constructor did not finish is freed: 500 would be 2 MB
    struct cleaner {
        towa::thread &me;
        item *i;
        ~cleaner() {
            towa::transaction tx(me); // runs while an exception unwinds: it is not this transaction's
            i->b = 4;
        }
    };
    try {
        cleaner c{me, i};
        throw 1;
    } catch (int) {
    }
    EXPECT(i->b == 4);
    {
        towa::transaction tx(me);
        i->a = 50;
        tx.abort();
        EXPECT(i->a == 1 && tx.epoch() == 0);
        EXPECT_THROW(towa::usage_error, tx.commit());
    }
    {
        towa::transaction tx(me);
        towa::destroy(tx, towa::make<item>(tx, item{1, 1, nullptr}));
        towa::destroy<item>(tx, nullptr);
        EXPECT_THROW(towa::usage_error, towa::transaction again(me)); // no nesting, and this one goes on
        tx.commit();
    }
    towa::transaction again(me);
}

static void test_no_undo_poisons() {
    {
        towa::pool pool(path, small());
        towa::thread me(pool);
        {
            towa::transaction tx(towa::no_undo, me);
            tx.set_root("item", towa::make<item>(tx, item{1, 2, nullptr}));
        }
        pool.sync();
        item *i = pool.root<item>("item");
        try {
            towa::transaction tx(towa::no_undo, me);
            i->a = 100;
            throw 1;
        } catch (int) {
        }
        EXPECT_THROW(towa::poisoned, towa::transaction again(me));
    }
    towa::pool pool(path, small());
    EXPECT(pool.root<item>("item")->a == 1);
}

// A lock that knows whether a transaction runs when it is taken and released.
struct watched {
    towa::thread *me;
    std::mutex m;
    int locks = 0;
    void look() { EXPECT(towa_tx_epoch(me->raw()) == 0); }
    void lock() { look(), m.lock(), locks++; }
    void unlock() { look(), m.unlock(); }
    bool try_lock() {
        look();
        return m.try_lock() && ++locks;
    }
};

static void test_locks_enclose() {
    towa::pool pool(path, small());
    towa::thread me(pool);
    watched a{&me, {}}, b{&me, {}};
    std::shared_mutex rw;
    {
        towa::transaction tx(me, a);
        EXPECT(!a.m.try_lock() && tx.epoch() > 0);
    }
    {
        towa::transaction tx(me, a, b);
        EXPECT(!a.m.try_lock() && !b.m.try_lock());
        tx.commit(); // the locks stay
        EXPECT(!a.m.try_lock() && !b.m.try_lock());
    }
    {
        std::unique_lock<watched> held(a);
        towa::transaction tx(me, std::move(held), std::unique_lock<watched>(b, std::defer_lock), std::shared_lock(rw));
        EXPECT(!held.owns_lock() && !a.m.try_lock() && !b.m.try_lock() && !rw.try_lock() && rw.try_lock_shared());
        rw.unlock_shared();
    }
    try {
        towa::transaction tx(towa::no_undo, me, b, a);
        tx.commit();
        throw 1;
    } catch (int) {
    }
    EXPECT(a.locks == 4 && b.locks == 3);
    EXPECT(a.m.try_lock() && b.m.try_lock() && rw.try_lock());
    a.m.unlock(), b.m.unlock(), rw.unlock();
    // A start that fails releases them.
    towa::transaction outer(me);
    std::mutex plain;
    EXPECT_THROW(towa::usage_error, towa::transaction again(me, plain));
    EXPECT(plain.try_lock());
    plain.unlock();
}

// Two mutexes, always in opposite orders: no deadlock; and whole transactions only, whichever thread looks.
static void test_threads() {
    towa::pool pool(path, small());
    std::mutex left, right;
    struct alignas(16) pair {
        towa::p<long> x;
        char line[TOWA_LINE];
        towa::p<long> y;
    };
    pair *shared;
    {
        towa::thread me(pool);
        towa::transaction tx(me);
        shared = towa::make<pair>(tx);
    }
    std::vector<std::thread> threads;
    std::atomic<int> torn{0};
    for (int t = 0; t < 4; t++)
        threads.emplace_back([&, t] {
            towa::thread me(pool);
            for (int i = 0; i < 2000; i++) {
                std::mutex &first = t % 2 ? left : right, &second = t % 2 ? right : left;
                towa::transaction tx(me, first, second);
                torn += shared->x != shared->y;
                ++shared->x;
                ++shared->y;
            }
        });
    for (auto &t : threads)
        t.join();
    EXPECT(torn == 0 && shared->x == 8000 && shared->y == 8000);
}

static void test_errors() {
    EXPECT_THROW(towa::not_found, [] {
        towa::options o = small();
        o.open = TOWA_OPEN_EXISTING;
        towa::pool none(path, o);
    }());
    towa::pool pool(path, small());
    EXPECT_THROW(towa::busy, towa::pool again(path, small()));
    {
        towa::thread me(pool);
        towa::transaction tx(me);
        tx.set_root("item", towa::make<item>(tx));
        EXPECT_THROW(towa::out_of_space, tx.alloc(1u << 30));
        EXPECT_THROW(towa::usage_error, tx.mark(&tx, 8));
        EXPECT_THROW(towa::usage_error, pool.sync());
        try {
            tx.alloc(1u << 30);
        } catch (const std::runtime_error &e) { // all of them are
            EXPECT(dynamic_cast<const towa::error *>(&e)->code() == TOWA_ENOSPC);
        }
    }
    EXPECT_THROW(towa::type_mismatch, pool.root<long>("item"));
    EXPECT(!pool.root<item>("none"));
    EXPECT(!pool.wait_durable(pool.epoch() + 1000000, std::chrono::milliseconds(5)));
    EXPECT(pool.wait_durable(pool.sync(), std::chrono::microseconds(0)));
    pool.interval(std::chrono::milliseconds(20));
    EXPECT(pool.interval() == std::chrono::milliseconds(20) && pool.checkpoint() <= pool.epoch());
    towa::pool moved = std::move(pool);
    EXPECT_THROW(towa::usage_error, pool.sync());
    {
        std::thread holder;
        std::atomic<int> step{0};
        holder = std::thread([&] {
            towa::thread me(moved);
            step = 1;
            while (step < 2)
                std::this_thread::yield();
        });
        while (step < 1)
            std::this_thread::yield();
        EXPECT_THROW(towa::busy, moved.close());
        step = 2;
        holder.join();
    }
    {
        towa::thread me(moved);
        EXPECT_THROW(towa::busy, moved.close());
    }
    moved.close();
    moved.close();
    EXPECT_THROW(towa::usage_error, moved.epoch());
}

static void test_containers() {
    towa::pool pool(path, small());
    towa::thread me(pool);
    const std::string large(100000, 'x');
    {
        towa::map m(pool, "m"), sorted(pool, "sorted", TOWA_MAP_ORDERED);
        EXPECT(m.put(me, "a", "1") && !m.put(me, "a", large) && m.put(me, "", "") && m.get("a") == large && m.get("") == "" && !m.get("b"));
        EXPECT(m.size() == 2 && m.erase(me, "a") && !m.erase(me, "a"));
        for (const char *key : {"pear", "apple", "fig"})
            sorted.put(me, key, std::string(key) + "!");
        std::string seen;
        auto see = [&](std::string_view key, std::string_view value) { seen += std::string(key) + "=" + std::string(value) + " "; };
        sorted.for_each(see);
        EXPECT(seen == "apple=apple! fig=fig! pear=pear! ");
        seen.clear();
        sorted.range("b", std::nullopt, see, TOWA_REVERSE);
        EXPECT(seen == "pear=pear! fig=fig! ");
        int calls = 0;
        EXPECT_THROW(std::domain_error, sorted.for_each([&](std::string_view, std::string_view) {
            calls++;
            throw std::domain_error("visitor"); // passes around the library, not through it
        }));
        EXPECT(calls == 1);
        EXPECT_THROW(towa::usage_error, m.range(std::nullopt, std::nullopt, see));
        EXPECT_THROW(towa::type_mismatch, towa::queue q(pool, "m"));
        EXPECT_THROW(towa::busy, pool.close());
        towa::queue q(pool, "q");
        q.push(me, "first");
        q.push(me, "second");
        EXPECT(q.size() == 2 && q.pop(me) == "first" && q.pop(me) == "second" && !q.pop(me));
        towa::transaction tx(me);
        EXPECT_THROW(towa::usage_error, m.get("a"));
    }
    {
        towa::transaction tx(towa::reserve(2 << 20), me);
        EXPECT(tx.alloc(1 << 20));
    }
    {
        towa::transaction tx(towa::no_undo.reserve(2 << 20), me);
        EXPECT(tx.alloc(1 << 20));
    }
    towa::transaction tx(me);
    EXPECT_THROW(towa::too_big, tx.alloc(1 << 20));
}

static void test_vector() {
    struct sample {
        explicit sample(double t) : at(t) {} // not default-constructible
        double at;
        const item *points;
    };
    towa::pool pool(path, small());
    {
        towa::thread me(pool);
        towa::vector<sample> v(pool, "v");
        EXPECT(v.size() == 0 && !v.get(0) && !v.pop(me) && !v.set(me, 0, sample(1)));
        for (int i = 0; i < 5000; i++)
            EXPECT(v.push(me, sample(i)) == static_cast<std::uint64_t>(i));
        EXPECT(v.set(me, 17, sample(-17)) && v.get(17)->at == -17 && v.get(4999)->at == 4999 && !v.get(5000));
        EXPECT(v.pop(me)->at == 4999 && v.size() == 4999);
        EXPECT_THROW(towa::type_mismatch, towa::vector<char> other(pool, "v"));
        EXPECT_THROW(towa::type_mismatch, towa::queue other(pool, "v"));
        towa::vector<sample> moved = std::move(v);
        EXPECT(moved.size() == 4999 && moved.get(0)->at == 0);
        EXPECT_THROW(towa::usage_error, v.size());
        EXPECT_THROW(towa::busy, pool.close());
        towa_vector *c = towa_vector_open(pool.raw(), "v", sizeof(sample)); // what C sees
        EXPECT(towa_vector_count(c) == 4999);
        towa_vector_close(c);
        towa::transaction tx(me);
        EXPECT_THROW(towa::usage_error, moved.get(0));
        EXPECT_THROW(towa::usage_error, moved.push(me, sample(1)));
    }
    pool.close();
    towa::pool again(path, small());
    EXPECT(towa::vector<sample>(again, "v").get(4998)->at == 4998);
}

// Transactions roll back in a pool that keeps nothing, too.
static void test_volatile_rolls_back() {
    towa::options o = small();
    o.mode = TOWA_MODE_VOLATILE;
    towa::pool pool("", o);
    towa::thread me(pool);
    item *i;
    {
        towa::transaction tx(me);
        i = towa::make<item>(tx, item{1, 2, nullptr});
    }
    try {
        towa::transaction tx(me);
        i->a = 100;
        i->next = i;
        throw 1;
    } catch (int) {
    }
    EXPECT(i->a == 1 && i->b == 2 && !i->next);
    towa::transaction tx(me);
    i->b = 3;
    tx.abort();
    EXPECT(i->b == 2);
}

// A commit that can never become durable says so.
static void test_commit_in_a_poisoned_pool() {
    towa::pool pool(path, small());
    towa::thread me(pool);
    towa::transaction tx(me);
    item *i = towa::make<item>(tx, item{1, 2, nullptr});
    std::thread([&] {
        towa::thread other(pool);
        towa::transaction lost(towa::no_undo, other);
        EXPECT_THROW(towa::poisoned, lost.abort());
    }).join();
    EXPECT_THROW(towa::poisoned, tx.commit());
    EXPECT_THROW(towa::usage_error, i->a = 3);
}

// The paper's names, in C++.
static void test_table_1() {
    EXPECT(towa_init(path.c_str(), nullptr) == TOWA_OK && towa_thread_init() == TOWA_OK);
    EXPECT(towa_transaction_start() == TOWA_OK);
    item *i = TOWA_PNEW(item, item{3, 4, nullptr});
    EXPECT(TOWA_MARK(i->a) == TOWA_OK && TOWA_ROOT_SET(item, "i", i) == TOWA_OK);
    TOWA_PDELETE(item, towa::pnew<item>());
    EXPECT_THROW(std::domain_error, TOWA_PNEW(throws, 1));
    EXPECT(towa_transaction_end() == TOWA_OK && towa_checkpoint() == TOWA_OK);
    EXPECT(TOWA_ROOT_GET(item, "i") == i && i->b == 4);
    EXPECT(towa_finalize() == TOWA_OK);
}

int main(int argc, char **argv) {
    const std::map<std::string, void (*)()> tests = {
        {"p", test_p},
        {"p_is_kept", test_p_is_kept},
        {"exceptions_roll_back", test_exceptions_roll_back},
        {"no_undo_poisons", test_no_undo_poisons},
        {"locks_enclose", test_locks_enclose},
        {"threads", test_threads},
        {"errors", test_errors},
        {"containers", test_containers},
        {"vector", test_vector},
        {"volatile_rolls_back", test_volatile_rolls_back},
        {"commit_in_a_poisoned_pool", test_commit_in_a_poisoned_pool},
        {"table_1", test_table_1},
    };
    if (argc == 2 && std::string(argv[1]) == "--list") {
        for (auto &t : tests)
            std::puts(t.first.c_str());
        return 0;
    }
    if (argc != 3 || !tests.count(argv[2]))
        return 2;
    path = argv[1];
    tests.at(argv[2])();
    return failures != 0;
}
