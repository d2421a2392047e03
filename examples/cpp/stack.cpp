// stack.cpp - a stack of words that survives kill -9, and how often each was pushed: durable transactions and an ordered map from C++
// (towa_tx.hpp).
//
//     stack POOL push WORD...   puts words on it
//     stack POOL pop            takes the last one off, and prints it
//     stack POOL dump           prints all, the last one first
//     stack POOL counts         prints each word that was ever pushed, in order, and how often
//
//     c++ -std=c++17 stack.cpp $(pkg-config --cflags --libs towa) -o stack
//
// Each word is durable on the stack when its transaction returns; its count is a change by itself.
#include <cstring>
#include <iostream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <towa_tx.hpp>

namespace dtx = towa::dtx;

// In the heap: plain data and pointers into the heap, in words.
struct item {
    item *below;
    std::uint64_t text[7];
};
struct stack {
    item *top;
    std::uint64_t height;
};

static stack *find(dtx::pool &pool, dtx::thread &me) {
    if (auto *there = pool.root<stack>("stack", 1))
        return there;
    return me.transaction([](dtx::tx &tx) {
        auto *made = tx.make(stack{});
        tx.set_root("stack", made, 1);
        return made;
    });
}

static void push(dtx::thread &me, stack &on, const std::string &word) {
    item made = {};
    if (word.size() >= sizeof made.text)
        throw std::invalid_argument("a word has at most 55 bytes");
    std::memcpy(made.text, word.data(), word.size());
    me.transaction([&](dtx::tx &tx) {
        made.below = tx.read(on.top);
        tx.write(on.top, tx.make(made));
        tx.write(on.height, tx.read(on.height) + 1);
    });
}

static std::string text(dtx::tx &tx, const item &of) {
    char bytes[sizeof of.text];
    for (std::size_t i = 0; i < std::size(of.text); i++) {
        const auto word = tx.read(of.text[i]);
        std::memcpy(bytes + i * sizeof word, &word, sizeof word);
    }
    return bytes;
}

static std::string pop(dtx::thread &me, stack &from) {
    return me.transaction([&](dtx::tx &tx) {
        auto *top = tx.read(from.top);
        if (!top)
            throw std::out_of_range("there is nothing on the stack"); // rolled back, and raised again by `transaction`
        tx.write(from.height, tx.read(from.height) - 1);
        tx.write(from.top, tx.read(top->below));
        auto word = text(tx, *top);
        tx.free(top);
        return word;
    });
}

static std::string dump(dtx::thread &me, stack &of) {
    return me.transaction([&](dtx::tx &tx) {
        std::string all;
        for (auto *at = tx.read(of.top); at; at = tx.read(at->below))
            all += text(tx, *at) + "\n";
        return all;
    });
}

int main(int argc, char **argv) {
    const std::string what = argc > 2 ? argv[2] : "";
    if (what != "push" && (argc != 3 || (what != "pop" && what != "dump" && what != "counts"))) {
        std::cerr << "usage: stack POOL push WORD... | pop | dump | counts\n";
        return 2;
    }
    try {
        dtx::pool pool(argv[1]);
        dtx::thread me(pool);
        auto *all = find(pool, me);
        dtx::tree<std::string> tree(pool, "counts");
        dtx::session<std::string> counts(tree);
        for (int i = 3; i < argc; i++) {
            push(me, *all, argv[i]);
            counts.upsert(argv[i], counts.get(argv[i]).value_or(0) + 1);
        }
        if (what == "pop")
            std::cout << pop(me, *all) << "\n";
        if (what == "dump")
            std::cout << dump(me, *all);
        if (what == "counts")
            for (const auto &[word, count] : counts)
                std::cout << word << " " << count << "\n";
    } catch (const std::exception &e) {
        std::cerr << "stack: " << e.what() << "\n";
        return 1;
    }
}
