// object.hpp - objects in the heap: made, destroyed, and made of fields that mark themselves. A part of towa.hpp: include that one.
#ifndef TOWA_OBJECT_HPP
#define TOWA_OBJECT_HPP

#include "transaction.hpp"

#include <memory>
#include <new>
#include <type_traits>
#include <utility>

namespace towa {

namespace detail {

// A T constructed in `block`, which holds one; if its constructor throws, `free` runs and the exception goes on.
template <class T, class Free, class... Args> T *construct(void *block, Free free, Args &&...args) {
    static_assert(alignof(T) <= TOWA_ALLOC_ALIGN, "the heap aligns blocks to 16 bytes");
    static_assert(!std::is_polymorphic_v<T>, "the tables of virtual functions move when the program restarts");
    try {
        if constexpr (std::is_constructible_v<T, Args...>)
            return ::new (block) T(std::forward<Args>(args)...);
        else
            return ::new (block) T{std::forward<Args>(args)...};
    } catch (...) {
        free(block);
        throw;
    }
}

} // namespace detail

// A new T in the heap, marked before its constructor runs. If that throws, the block is freed and the exception goes on.
template <class T, class... Args> T *make(tx &in, Args &&...args) {
    return detail::construct<T>(in.alloc(sizeof(T)), [&in](void *block) { in.free(block); }, std::forward<Args>(args)...);
}
// Destroys it and frees its block; nullptr is fine.
template <class T> void destroy(tx &in, T *object) {
    if (!object)
        return;
    object->~T();
    in.free(object);
}

// A field of type T that marks itself before every write. Reading costs what reading a T costs. Construction does not mark: the
// block that make() gives is marked. One that lies in no pool (on the stack, say) behaves like a T. A write in a pool outside a
// transaction throws usage_error and does not happen.
template <class T> class p {
    static_assert(std::is_trivially_copyable_v<T>, "p<T> is for plain data; give the fields of a larger type p<> of their own");

  public:
    p() noexcept : value_() {}
    p(const T &v) noexcept : value_(v) {} // implicit, so that p<int> n = 3 and aggregates read as with T
    p(const p &) noexcept = default;

    p &operator=(const T &v) {
        const T copy = v; // v may be a part of what is written
        rw() = copy;
        return *this;
    }
    p &operator=(const p &other) { return *this = other.value_; }

    operator const T &() const noexcept { return value_; }
    const T &get() const noexcept { return value_; }
    // To write a part of it: marks the whole, then gives it. The reference must not outlive the transaction.
    T &rw() {
        const int code = towa_mark(&value_, sizeof value_);
        if (code != TOWA_OK && code != TOWA_ERANGE)
            throw_last_error();
        return value_;
    }

    // For a pointer what it points to, else the members of T; reading only.
    auto operator->() const noexcept {
        if constexpr (std::is_pointer_v<T>)
            return value_;
        else
            return std::addressof(value_);
    }
    template <class U = T> std::enable_if_t<std::is_pointer_v<U>, std::remove_pointer_t<U> &> operator*() const noexcept {
        return *value_;
    }

    template <class U> p &operator+=(const U &u) { return rw() += u, *this; }
    template <class U> p &operator-=(const U &u) { return rw() -= u, *this; }
    template <class U> p &operator*=(const U &u) { return rw() *= u, *this; }
    template <class U> p &operator/=(const U &u) { return rw() /= u, *this; }
    template <class U> p &operator%=(const U &u) { return rw() %= u, *this; }
    template <class U> p &operator&=(const U &u) { return rw() &= u, *this; }
    template <class U> p &operator|=(const U &u) { return rw() |= u, *this; }
    template <class U> p &operator^=(const U &u) { return rw() ^= u, *this; }
    template <class U> p &operator<<=(const U &u) { return rw() <<= u, *this; }
    template <class U> p &operator>>=(const U &u) { return rw() >>= u, *this; }
    p &operator++() { return ++rw(), *this; }
    p &operator--() { return --rw(), *this; }
    T operator++(int) { return rw()++; }
    T operator--(int) { return rw()--; }

    friend void swap(p &a, p &b) {
        const T t = a.value_;
        a = b.value_;
        b = t;
    }

  private:
    T value_;
};

// The same on the calling thread's running transaction, in the paper's spelling: PNEW marks before construction.
template <class T, class... Args> T *pnew(Args &&...args) {
    void *block = towa_tx_alloc(nullptr, sizeof(T));
    if (!block)
        throw_last_error();
    return detail::construct<T>(block, [](void *b) { (void)towa_tx_free(nullptr, b); }, std::forward<Args>(args)...);
}
template <class T> void pdelete(T *object) {
    if (!object)
        return;
    object->~T();
    check(towa_tx_free(nullptr, object));
}

} // namespace towa

#endif // TOWA_OBJECT_HPP
