// Exceptions through frames whose unwind tables are in one file, and whose text is in another.
#include <cstdio>
#include <iostream>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>
#include <typeinfo>

__asm__(".text\n.skip 16384, 0x90\n");

struct Noisy {
    ~Noisy() { std::cout << "unwound\n"; }
};

__attribute__((noinline)) static int deep(int level)
{
    Noisy noisy;
    if (level == 0)
        throw std::out_of_range("at the bottom");
    return deep(level - 1) + 1;
}

struct Base {
    virtual ~Base() = default;
    virtual int number() { return 1; }
};
struct Derived : Base {
    int number() override { return 2; }
};

int main()
{
    try {
        deep(3);
    } catch (const std::exception &caught) {
        std::cout << "caught " << caught.what() << "\n";
    }
    std::thread([] {
        try {
            throw 5;
        } catch (int number) {
            std::cout << "in a thread " << number << "\n";
        }
    }).join();
    std::map<std::string, int> map{{"b", 2}, {"a", 1}};
    for (auto &[name, number] : map)
        std::cout << name << number << "\n";
    Base *base = new Derived;
    std::cout << base->number() << (dynamic_cast<Derived *>(base) != nullptr) << typeid(*base).name() << "\n";
    delete base;
    return 3;
}
