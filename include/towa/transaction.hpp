// transaction.hpp - transactions, with and without their locks. A part of towa.hpp: include that one.
#ifndef TOWA_TRANSACTION_HPP
#define TOWA_TRANSACTION_HPP

#include "pool.hpp"

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <tuple>
#include <utility>

namespace towa {

// How to begin a transaction: the first argument of towa::transaction, where the default does not suit.
struct how {
    bool undo = true;          // false: saves nothing and is fastest, but an exception that leaves the scope poisons the pool
    std::size_t reserved = 0;  // bytes it may write beyond the usual (see towa_tx_begin)
    constexpr how reserve(std::size_t bytes) const { return how{undo, bytes}; }
};
inline constexpr how no_undo{false, 0};
constexpr how reserve(std::size_t bytes) { return how{true, bytes}; }

// A running transaction, without its locks: what functions that take part in one ask for (`void push(towa::tx &tx, ...)`).
class tx {
  public:
    tx(const tx &) = delete;
    tx &operator=(const tx &) = delete;

    // Marks bytes that are written by other means than p<T>; call it before writing them.
    void mark(const void *addr, std::size_t size) { check(towa_tx_mark(thread_, addr, size)); }
    template <class T> void mark(const T &object) { mark(std::addressof(object), sizeof(T)); }
    // A marked block of at least `size` bytes.
    void *alloc(std::size_t size) {
        void *block = towa_tx_alloc(thread_, size);
        if (!block)
            throw_last_error();
        return block;
    }
    // Frees a block of the pool; nullptr is fine.
    void free(void *block) { check(towa_tx_free(thread_, block)); }
    // Makes `object` root `name`; nullptr removes the root.
    template <class T> void set_root(const char *name, T *object) { set_root(name, object, type_tag<T>()); }
    template <class T> void set_root(const char *name, T *object, std::uint64_t tag) {
        check(towa_tx_set_root(thread_, name, tag, sizeof(T), object));
    }
    // Durable once pool.durable_epoch() >= this. 0 after commit or abort.
    std::uint64_t epoch() const { return running_ ? towa_tx_epoch(thread_) : 0; }

    // Ends it now (the locks stay until the scope ends). Throws if it could not commit; it is over either way.
    void commit() {
        finish_once();
        check(towa_tx_end(thread_));
    }
    // Rolls it back now. Throws poisoned if it was begun with no_undo.
    void abort() {
        finish_once();
        check(towa_tx_abort(thread_));
    }

  protected:
    tx(thread &in, how h) : thread_(in.raw()), exceptions_(std::uncaught_exceptions()) {
        check(towa_tx_begin_reserving(thread_, h.undo ? TOWA_UNDOABLE : 0u, h.reserved));
    }
    // Ends, or aborts when an exception is leaving the scope. A transaction that fails here was rolled back, or has poisoned the
    // pool, which the next one reports; commit() tells at once.
    ~tx() {
        if (!running_)
            return;
        if (std::uncaught_exceptions() > exceptions_)
            (void)towa_tx_abort(thread_);
        else
            (void)towa_tx_end(thread_);
    }

  private:
    void finish_once() {
        if (!running_)
            throw usage_error(TOWA_EUSAGE, "this towa::transaction is over already; start another one");
        running_ = false;
    }
    towa_thread *thread_;
    int exceptions_;
    bool running_ = true;
};

namespace detail {

// A mutex (an lvalue) is locked here; a guard (an rvalue: std::unique_lock, std::shared_lock) is moved in, locked if it is not yet.
template <class A> struct guard {
    static_assert(!std::is_lvalue_reference_v<A>, "internal");
    using type = A;
    static type take(A &&g) {
        if (!g.owns_lock())
            g.lock();
        return std::move(g);
    }
    static std::tuple<> pending(type &) { return {}; }
};
template <class M> struct guard<M &> {
    using type = std::unique_lock<M>;
    static type take(M &m) { return type(m, std::defer_lock); }
    static std::tuple<type &> pending(type &g) { return std::tuple<type &>(g); }
};

// Everything locked, without deadlock between the mutexes given together.
template <class... A> class guards {
  protected:
    explicit guards(A &&...a) : held_(guard<A>::take(std::forward<A>(a))...) {
        lock(std::index_sequence_for<A...>{});
    }

  private:
    template <std::size_t... I> void lock(std::index_sequence<I...>) {
        std::apply(
            [](auto &...g) {
                if constexpr (sizeof...(g) == 1)
                    (g.lock(), ...);
                else if constexpr (sizeof...(g) > 1)
                    std::lock(g...);
            },
            std::tuple_cat(guard<A>::pending(std::get<I>(held_))...));
    }
    std::tuple<typename guard<A>::type...> held_;
};

} // namespace detail

// A transaction and the locks around it:
//     towa::transaction tx(me);                                          no locks: nobody else writes what this one does
//     towa::transaction tx(me, mutex_a, mutex_b);                        locked together, as std::scoped_lock does
//     towa::transaction tx(me, std::unique_lock(m), std::shared_lock(rw)); guards made by the caller, moved in
//     towa::transaction tx(towa::no_undo, me, mutex);                    cannot be rolled back; the fastest marks
//     towa::transaction tx(towa::reserve(8 << 20), me, mutex);           writes up to 8 MiB beyond the usual
// The scope's end ends it and then releases the locks. When an exception leaves the scope, it is rolled back first (with no_undo:
// the pool is poisoned). Bases are constructed left to right and destroyed right to left, which is what keeps the order.
template <class... A> class transaction : private detail::guards<A...>, public tx {
  public:
    explicit transaction(thread &in, A... a) : detail::guards<A...>(std::forward<A>(a)...), tx(in, how{}) {}
    transaction(how h, thread &in, A... a) : detail::guards<A...>(std::forward<A>(a)...), tx(in, h) {}
};
template <class... A> transaction(thread &, A &&...) -> transaction<A...>;
template <class... A> transaction(how, thread &, A &&...) -> transaction<A...>;

} // namespace towa

#endif // TOWA_TRANSACTION_HPP
