// tx_behaviour.cpp - what towa_tx.hpp adds to towa_tx.h, checked. `tx_behaviour POOL TEST` runs one test in a fresh pool and exits with 0
// if it holds.
#include <cstdio>
#include <cstring>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <towa_tx.hpp>
#include <vector>

#include "expect.hpp"

struct cells {
    std::uint64_t a, b;
    double d;
    cells *self;
};

static towa::dtx::options small(unsigned tm = TOWA_DTX_TM_AUTO) {
    towa::dtx::options o;
    o.heap_len = 16u << 20;
    o.lane_len = 1u << 20;
    o.lanes = 12;
    o.tm = tm;
    return o;
}

// The cells of the pool, which are made where there are none.
static cells *find(towa::dtx::pool &pool, towa::dtx::thread &me) {
    if (auto *there = pool.root<cells>("cells"))
        return there;
    return me.transaction([](towa::dtx::tx &tx) {
        auto *made = tx.make(cells{1, 2, 0.5, nullptr});
        tx.set_root("cells", made);
        return made;
    });
}

static void test_results_and_words() {
    {
        towa::dtx::pool pool(path, small());
        towa::dtx::thread me(pool);
        auto *c = find(pool, me);
        const auto sum = me.transaction([&](towa::dtx::tx &tx) {
            tx.write(c->a, 40);
            tx.write(c->d, tx.read(c->d) * 3);
            tx.write(c->self, c);
            return std::to_string(tx.read(c->a) + tx.read(c->b));
        });
        EXPECT(sum == "42");
        const auto nothing = [](towa::dtx::tx &) {};
        static_assert(std::is_void_v<decltype(me.transaction(nothing))>);
        EXPECT(pool.stats().commits_hardware + pool.stats().commits_software >= 2);
        EXPECT_THROW(towa::type_mismatch, pool.root<std::string>("cells"));
        EXPECT(!pool.root<cells>("others"));
        EXPECT_THROW(towa::busy, pool.close());
        me.close();
        EXPECT_THROW(towa::usage_error, me.transaction([](towa::dtx::tx &) {}));
        pool.close();
    }
    towa::dtx::pool pool(path, small());
    towa::dtx::thread me(pool);
    const auto *c = pool.root<cells>("cells");
    EXPECT(c && c->a == 40 && c->b == 2 && c->d == 1.5 && c->self == c);
}

static void test_exceptions_roll_back() {
    for (unsigned tm : {TOWA_DTX_TM_AUTO, TOWA_DTX_TM_STM, TOWA_DTX_TM_LOCK}) {
        towa::dtx::pool pool(path, small(tm));
        towa::dtx::thread me(pool);
        auto *c = find(pool, me);
        const auto give_up = [&](towa::dtx::tx &tx) {
            tx.write(c->a, 77);
            tx.set_root("gone", tx.make(cells{}));
            throw std::domain_error("of the program's own");
        };
        EXPECT_THROW(std::domain_error, me.transaction(give_up));
        EXPECT_THROW(std::domain_error, me.transaction_software(give_up));
        // Without a call that hardware cannot do: the throw itself is made there first.
        EXPECT_THROW(std::domain_error, me.transaction([&](towa::dtx::tx &tx) {
            tx.write(c->a, 78);
            throw std::domain_error("early");
        }));
        try {
            me.transaction([](towa::dtx::tx &) { throw 5; });
            EXPECT(false);
        } catch (int five) {
            EXPECT(five == 5);
        }
        // A part of the outer one.
        EXPECT_THROW(std::domain_error, me.transaction([&](towa::dtx::tx &tx) {
            tx.write(c->b, 79);
            me.transaction(give_up);
        }));
        EXPECT(me.transaction([&](towa::dtx::tx &tx) { return tx.read(c->a) == 1 && tx.read(c->b) == 2; }));
        EXPECT(!pool.root<cells>("gone"));
    }
}

// The outer call said something of an earlier, unrelated failure.
static void test_an_inner_exception_that_is_swallowed_ends_the_outer_one() {
    for (unsigned tm : {TOWA_DTX_TM_AUTO, TOWA_DTX_TM_STM, TOWA_DTX_TM_LOCK}) {
        towa::dtx::pool pool(path, small(tm));
        towa::dtx::thread me(pool);
        auto *c = find(pool, me);
        EXPECT_THROW(towa::type_mismatch, pool.root<std::string>("cells"));
        try {
            me.transaction([&](towa::dtx::tx &tx) {
                tx.write(c->a, 50);
                try {
                    me.transaction([&](towa::dtx::tx &) { throw std::logic_error("inner gave up"); });
                } catch (const std::logic_error &) {
                }
            });
            EXPECT(false);
        } catch (const std::logic_error &e) {
            EXPECT(std::string(e.what()) == "inner gave up");
        }
        EXPECT(me.transaction([&](towa::dtx::tx &tx) { return tx.read(c->a); }) == 1);
    }
}

// A pool that went before its thread stayed open for the rest of the process.
static void test_what_lies_in_a_pool_may_outlive_its_object() {
    for (int round = 0; round < 2; round++) {
        std::optional<towa::dtx::pool> pool(std::in_place, path, small());
        towa::dtx::thread me(*pool);
        towa::dtx::tree<std::uint64_t> tree(*pool, "tree");
        towa::dtx::session<std::uint64_t> session(tree);
        pool.reset();
        EXPECT(session.insert(static_cast<std::uint64_t>(round), 1));
        me.transaction([&](towa::dtx::tx &tx) { tx.set_root("it", tx.make(cells{})); });
    }
    towa::dtx::pool pool(path, small());
    EXPECT(towa::dtx::tree<std::uint64_t>(pool, "tree").count() == 2);
    towa::dtx::tree<std::uint64_t>::destroy(pool, "tree");
    EXPECT_THROW(towa::error, towa::dtx::tree<std::uint64_t>::destroy(pool, "tree"));
    pool.close();
}

static void test_failures_are_exceptions() {
    towa::dtx::pool pool(path, small());
    towa::dtx::thread me(pool);
    auto *c = find(pool, me);
    std::uint64_t elsewhere = 0;
    EXPECT_THROW(towa::usage_error, me.transaction([&](towa::dtx::tx &tx) { tx.write(elsewhere, 1); }));
    EXPECT_THROW(towa::out_of_space, me.transaction([&](towa::dtx::tx &tx) { (void)tx.alloc(64u << 20); }));
    // Swallowed, it does not commit all the same.
    EXPECT_THROW(towa::usage_error, me.transaction([&](towa::dtx::tx &tx) {
        tx.write(c->a, 5);
        try {
            tx.free(&elsewhere);
        } catch (...) {
        }
    }));
    EXPECT(me.transaction([&](towa::dtx::tx &tx) { return tx.read(c->a); }) == 1);
    std::vector<towa::dtx::thread> all;
    EXPECT_THROW(towa::busy, while (all.size() < 20) all.emplace_back(pool));
    EXPECT(all.size() == 11);
}

static void test_threads() {
    constexpr unsigned threads = 4, rounds = 2000;
    towa::dtx::pool pool(path, small());
    towa::dtx::thread me(pool);
    auto *c = find(pool, me);
    std::vector<std::thread> all;
    for (unsigned i = 0; i < threads; i++)
        all.emplace_back([&] {
            towa::dtx::thread mine(pool);
            for (unsigned n = 0; n < rounds; n++)
                mine.transaction([&](towa::dtx::tx &tx) { tx.write(c->a, tx.read(c->a) + 1); });
        });
    // Waits for the others by being run again.
    me.transaction([&](towa::dtx::tx &tx) {
        if (tx.read(c->a) < 10)
            tx.again();
    });
    for (auto &thread : all)
        thread.join();
    EXPECT(me.transaction([&](towa::dtx::tx &tx) { return tx.read(c->a); }) == 1 + threads * rounds);
}

// The same operations on the tree and on a map.
template <class K, class Make> static void compare(towa::dtx::tree<K> &tree, Make make) {
    towa::dtx::session<K> session(tree);
    std::map<K, std::uint64_t> model;
    EXPECT(session.begin() == session.end());
    for (std::uint64_t n = 0; n < 400; n++) {
        const K key = make(n * 7 % 300);
        EXPECT(session.insert(key, n) == model.emplace(key, n).second);
    }
    for (std::uint64_t n = 0; n < 300; n += 3)
        EXPECT(session.erase(make(n)) == model[make(n)] && model.erase(make(n)) == 1 && !session.get(make(n)));
    EXPECT(session.upsert(make(1), 9) == model[make(1)] && !session.upsert(make(1000), 8));
    model[make(1)] = 9;
    model[make(1000)] = 8;
    EXPECT(tree.count() == model.size());
    std::map<K, std::uint64_t> found;
    for (const auto &[key, value] : session)
        found.emplace_hint(found.end(), key, value);
    EXPECT(found == model);
    auto at = model.lower_bound(make(50));
    for (const auto &[key, value] : session.range(make(50), make(250))) {
        EXPECT(at != model.end() && key == at->first && value == at->second);
        ++at;
    }
    EXPECT(at == model.lower_bound(make(250)));
    std::vector<std::uint64_t> last;
    session.scan(std::nullopt, std::nullopt, TOWA_REVERSE, [&](auto, std::uint64_t value) { return last.push_back(value), last.size() < 2; });
    EXPECT(last.size() == 2 && last[0] == model.rbegin()->second);
    EXPECT_THROW(std::domain_error, session.scan(std::nullopt, std::nullopt, 0, [](auto, std::uint64_t) -> bool { throw std::domain_error("x"); }));
    EXPECT_THROW(towa::busy, tree.close());
    session.close();
    tree.verify();
}

// A map, loaded into an empty tree.
template <class K, class Make> static void load(towa::dtx::tree<K> &tree, Make make) {
    std::map<K, std::uint64_t> model;
    EXPECT(tree.bulk_load(model) == 0);
    for (std::uint64_t n = 0; n < 3000; n++)
        model.emplace(make(n), n);
    EXPECT(tree.bulk_load(model) == 3000 && tree.count() == 3000);
    std::map<K, std::uint64_t> found;
    for (const auto &[key, value] : towa::dtx::session<K>(tree))
        found.emplace_hint(found.end(), key, value);
    EXPECT(found == model);
    EXPECT_THROW(towa::usage_error, tree.bulk_load(model));
    tree.verify();
}

static void test_loading() {
    const auto text = [](std::uint64_t n) { return n ? std::to_string(10000 + n) : std::string(); };
    {
        towa::dtx::pool pool(path, small());
        towa::dtx::tree<std::uint64_t> numbers(pool, "numbers");
        load(numbers, [](std::uint64_t n) { return n; });
        towa::dtx::tree<std::string> texts(pool, "texts");
        load(texts, text);
    }
    towa::dtx::tree<std::string> alone(std::filesystem::path(path + "-fp"));
    load(alone, text);
}

static void test_trees() {
    const auto text = [](std::uint64_t n) { return std::to_string(10000 + n) + std::string(n % 40, 'x'); };
    const auto number = [](std::uint64_t n) { return n; };
    {
        towa::dtx::pool pool(path, small());
        towa::dtx::tree<std::uint64_t> numbers(pool, "numbers");
        compare(numbers, number);
        towa::dtx::tree<std::string> texts(pool, "texts");
        compare(texts, text);
        EXPECT_THROW(towa::type_mismatch, towa::dtx::tree<std::string>(pool, "numbers"));
        EXPECT_THROW(towa::usage_error, (void)towa::dtx::session<std::string>(texts).insert(std::string(2000, 'x'), 1));
    }
    towa::dtx::tree<std::string> alone(std::filesystem::path(path + "-fp"));
    compare(alone, text);
}

static const std::map<std::string, void (*)()> tests = {
    {"results_and_words", test_results_and_words},
    {"exceptions_roll_back", test_exceptions_roll_back},
    {"failures_are_exceptions", test_failures_are_exceptions},
    {"an_inner_exception_that_is_swallowed_ends_the_outer_one", test_an_inner_exception_that_is_swallowed_ends_the_outer_one},
    {"what_lies_in_a_pool_may_outlive_its_object", test_what_lies_in_a_pool_may_outlive_its_object},
    {"threads", test_threads},
    {"trees", test_trees},
    {"loading", test_loading},
};

int main(int argc, char **argv) {
    if (argc == 2 && std::strcmp(argv[1], "--list") == 0) {
        for (const auto &test : tests)
            std::puts(test.first.c_str());
        return 0;
    }
    const auto test = argc == 3 ? tests.find(argv[2]) : tests.end();
    if (test == tests.end())
        return 2;
    path = argv[1];
    try {
        test->second();
    } catch (const std::exception &e) {
        std::fprintf(stderr, "%s: %s\n", argv[2], e.what());
        return 1;
    }
    return failures ? 1 : 0;
}
