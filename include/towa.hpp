// towa.hpp - in-memory data structures that survive a crash, for C++17. A header over towa.h: read that one's opening comment
// first; its five rules hold here too. What this layer adds:
//
//   towa::pool, towa::thread      RAII over the handles
//   towa::transaction             takes the locks, then starts; ends, then releases them (rule 2 cannot be broken);
//                                 an exception that leaves its scope rolls it back
//   towa::p<T>                    a field that marks itself before it is written (rule 1 cannot be forgotten)
//   towa::make / towa::destroy    new and delete in the heap; marked before construction
//   towa::map, towa::queue        the library's containers, with strings for keys and values
//   towa::error and its children  instead of codes; all derive from std::runtime_error
//
//     struct node { towa::p<long> value; towa::p<node *> next; };
//
//     towa::pool pool("/mnt/pmem/app");
//     towa::thread me(pool);
//     std::mutex lock;                                  // in ordinary memory: locks are not durable
//     {
//         towa::transaction tx(me, lock);
//         auto *n = towa::make<node>(tx, node{42, pool.root<node>("head")});
//         tx.set_root("head", n);
//     }                                                 // ended, then unlocked
//
// Standard containers must NOT be put in the heap through an allocator: they write to their nodes without marking them.
// Types in the heap are never destroyed by a crash nor constructed by a recovery: they must be fine with that, that is hold only
// p<T>, plain data and pointers into the heap; no virtual functions (their tables move with the program).
#ifndef TOWA_HPP
#define TOWA_HPP

#include "towa.h"

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>

namespace towa {

// ---- errors --------------------------------------------------------------------------------------------------------

// What failed; what() says what, where and what to do, code() is one of TOWA_E....
class error : public std::runtime_error {
  public:
    error(int code, const std::string &what) : std::runtime_error(what), code_(code) {}
    int code() const noexcept { return code_; }

  private:
    int code_;
};
// Misuse: a nested transaction, a write outside one, a handle of another thread, an argument that makes no sense.
struct usage_error : error { using error::error; };
// The transaction writes more than it reserved (towa::reserve), or than the log can hold.
struct too_big : error { using error::error; };
// The heap or the medium is full; nothing was changed.
struct out_of_space : error { using error::error; };
// The pool stays at its last durable epoch; close it and open it anew.
struct poisoned : error { using error::error; };
// In use by another process or thread.
struct busy : error { using error::error; };
// No such pool.
struct not_found : error { using error::error; };
// A root of another type or size.
struct type_mismatch : error { using error::error; };
// Not a pool, a newer one, or damaged; nothing was modified.
struct damaged : error { using error::error; };
// The operating system refused or failed.
struct io_error : error { using error::error; };

// Throws the thread's last failure.
[[noreturn]] inline void throw_last_error() {
    const int code = towa_last_error_code();
    const std::string what = towa_last_error();
    switch (code) {
    case TOWA_EINVAL:
    case TOWA_EUSAGE:
    case TOWA_ERANGE: throw usage_error(code, what);
    case TOWA_ENOSPC: throw out_of_space(code, what);
    case TOWA_ETOOBIG: throw too_big(code, what);
    case TOWA_EPOISONED: throw poisoned(code, what);
    case TOWA_EBUSY: throw busy(code, what);
    case TOWA_ENOENT: throw not_found(code, what);
    case TOWA_ETYPE: throw type_mismatch(code, what);
    case TOWA_EDAMAGED: throw damaged(code, what);
    case TOWA_EIO: throw io_error(code, what);
    default: throw error(code, what);
    }
}
// Turns a code of towa.h into an exception.
inline void check(int code) {
    if (code != TOWA_OK)
        throw_last_error();
}

// ---- type tags -----------------------------------------------------------------------------------------------------

// What a root's type is called in the pool. Specialise it to share a root with C, or to change the name with the layout:
//     template <> struct towa::type_name<list> { static std::string get() { return "struct list"; } };
template <class T> struct type_name {
    static std::string get() { return typeid(T).name(); }
};
template <class T> std::uint64_t type_tag() { return towa_type_tag(type_name<T>::get().c_str()); }

// ---- options, pool, thread -------------------------------------------------------------------------------------------

// towa_options with the defaults filled in; the fields are documented there.
struct options : towa_options {
    options() : towa_options TOWA_OPTIONS_INIT {}
};

// An open pool. Closes with a last checkpoint when it goes out of scope.
class pool {
  public:
    // Opens (recovering, if need be) or creates.
    explicit pool(const std::filesystem::path &path, const options &o = {}) : handle_(towa_pool_open(path.c_str(), &o)) {
        if (!handle_)
            throw_last_error();
    }
    pool(pool &&other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
    pool &operator=(pool &&other) noexcept {
        std::swap(handle_, other.handle_);
        return *this;
    }
    // Errors are lost here: call close() to see them. A pool that still has threads attached stays open.
    ~pool() {
        if (handle_)
            (void)towa_pool_close(handle_);
    }

    // Last checkpoint, then closes; throws busy, and stays open, while a towa::thread of it lives, the calling thread's too.
    void close() {
        if (!handle_)
            return;
        const int code = towa_pool_close(handle_);
        if (code != TOWA_EBUSY)
            handle_ = nullptr;
        check(code);
    }

    // The object root `name` points to; nullptr if there is no such root. Throws type_mismatch if it is of another type.
    template <class T> T *root(const char *name) const { return root<T>(name, type_tag<T>()); }
    template <class T> T *root(const char *name, std::uint64_t tag) const {
        void *object = nullptr;
        const int code = towa_pool_root(raw(), name, tag, sizeof(T), &object);
        if (code == TOWA_ENOENT)
            return nullptr;
        check(code);
        return static_cast<T *>(object);
    }

    // Returns when everything completed before the call is durable; gives the durable epoch.
    std::uint64_t sync() {
        std::uint64_t durable = 0;
        check(towa_pool_sync(raw(), &durable));
        return durable;
    }
    // Whether `epoch` became durable within `timeout`.
    bool wait_durable(std::uint64_t epoch, std::chrono::microseconds timeout) {
        const auto us = timeout.count() < 0 ? 0u : static_cast<std::uint64_t>(timeout.count());
        const int code = towa_pool_wait_durable(raw(), epoch, us);
        if (code == TOWA_ETIMEDOUT)
            return false;
        check(code);
        return true;
    }
    // One checkpoint now; gives the durable epoch.
    std::uint64_t checkpoint() {
        std::uint64_t durable = 0;
        check(towa_pool_checkpoint(raw(), &durable));
        return durable;
    }
    std::uint64_t epoch() const { return towa_pool_epoch(raw()); }
    std::uint64_t durable_epoch() const { return towa_pool_durable_epoch(raw()); }
    std::chrono::microseconds interval() const {
        return std::chrono::microseconds(static_cast<std::int64_t>(towa_pool_interval_us(raw())));
    }
    void interval(std::chrono::microseconds every) {
        check(towa_pool_set_interval_us(raw(), static_cast<std::uint64_t>(every.count())));
    }
    struct towa_stats stats() const {
        struct towa_stats s = {};
        s.size = sizeof s;
        check(towa_pool_stats(raw(), &s));
        return s;
    }
    // The handle, for the functions of towa.h. Throws if the pool was closed or moved from (NULL would mean another pool there).
    towa_pool *raw() const {
        if (!handle_)
            throw usage_error(TOWA_EUSAGE, "this towa::pool was closed or moved from");
        return handle_;
    }

  private:
    towa_pool *handle_;
};

// The calling thread's registration with a pool. Create and destroy it on the thread that uses it.
class thread {
  public:
    explicit thread(pool &in) : handle_(towa_thread_attach(in.raw())) {
        if (!handle_)
            throw_last_error();
    }
    thread(const thread &) = delete;
    thread &operator=(const thread &) = delete;
    ~thread() { (void)towa_thread_detach(handle_); }
    towa_thread *raw() const noexcept { return handle_; }

  private:
    towa_thread *handle_;
};

// ---- transactions ----------------------------------------------------------------------------------------------------

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

// ---- objects -----------------------------------------------------------------------------------------------------------

// A new T in the heap, marked before its constructor runs. If that throws, the block is freed and the exception goes on.
template <class T, class... Args> T *make(tx &in, Args &&...args) {
    static_assert(alignof(T) <= TOWA_ALLOC_ALIGN, "the heap aligns blocks to 16 bytes");
    static_assert(!std::is_polymorphic_v<T>, "the tables of virtual functions move when the program restarts");
    void *block = in.alloc(sizeof(T));
    try {
        if constexpr (std::is_constructible_v<T, Args...>)
            return ::new (block) T(std::forward<Args>(args)...);
        else
            return ::new (block) T{std::forward<Args>(args)...};
    } catch (...) {
        in.free(block);
        throw;
    }
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

// The paper's spelling, on the calling thread's running transaction; PNEW marks before construction.
template <class T, class... Args> T *pnew(Args &&...args) {
    static_assert(alignof(T) <= TOWA_ALLOC_ALIGN && !std::is_polymorphic_v<T>, "see towa::make");
    void *block = towa_tx_alloc(nullptr, sizeof(T));
    if (!block)
        throw_last_error();
    try {
        if constexpr (std::is_constructible_v<T, Args...>)
            return ::new (block) T(std::forward<Args>(args)...);
        else
            return ::new (block) T{std::forward<Args>(args)...};
    } catch (...) {
        (void)towa_tx_free(nullptr, block);
        throw;
    }
}
template <class T> void pdelete(T *object) {
    if (!object)
        return;
    object->~T();
    check(towa_tx_free(nullptr, object));
}

// ---- containers ----------------------------------------------------------------------------------------------------------

// A map of strings (bytes) that survives; see towa.h's section on containers. Never inside a transaction.
class map {
  public:
    map(pool &in, const char *name, unsigned kind = TOWA_MAP_HASH) : handle_(towa_map_open(in.raw(), name, kind)) {
        if (!handle_)
            throw_last_error();
    }
    map(map &&other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
    map &operator=(map &&other) noexcept {
        std::swap(handle_, other.handle_);
        return *this;
    }
    ~map() { towa_map_close(handle_); }

    // Gives `key` the value; whether the key is new.
    bool put(thread &me, std::string_view key, std::string_view value) {
        return yes(towa_map_put(handle_, me.raw(), key.data(), key.size(), value.data(), value.size()));
    }
    // Removes `key`; whether it was there.
    bool erase(thread &me, std::string_view key) { return yes(towa_map_delete(handle_, me.raw(), key.data(), key.size())); }
    // A copy of its value.
    std::optional<std::string> get(std::string_view key) const {
        std::string value(64, '\0');
        for (;;) {
            std::size_t len = 0;
            if (!yes(towa_map_get(handle_, key.data(), key.size(), &value[0], value.size(), &len)))
                return std::nullopt;
            const bool whole = len <= value.size(); // else it has to be asked again, and may have changed meanwhile
            value.resize(len);
            if (whole)
                return value;
        }
    }
    std::uint64_t size() const {
        const std::int64_t count = towa_map_count(handle_);
        if (count < 0)
            throw_last_error();
        return static_cast<std::uint64_t>(count);
    }
    // Calls visit(std::string_view key, std::string_view value) for each item; the views live as long as the call.
    template <class F> void for_each(F visit) const {
        visitor<F> v{visit, nullptr};
        v.finish(towa_map_each(handle_, &visitor<F>::call, &v));
    }
    // The same in order of keys, from <= key < to; ordered maps only. `flags`: TOWA_REVERSE.
    using bound = std::optional<std::string_view>;
    template <class F> void range(bound from, bound to, F visit, unsigned flags = 0) const {
        visitor<F> v{visit, nullptr};
        const std::size_t from_len = from ? from->size() : 0, to_len = to ? to->size() : 0;
        v.finish(towa_map_range(handle_, data(from), from_len, data(to), to_len, flags, &visitor<F>::call, &v));
    }
    towa_map *raw() const noexcept { return handle_; }

  private:
    static bool yes(int result) {
        if (result < 0)
            throw_last_error();
        return result != 0;
    }
    static const char *data(const bound &s) { return !s ? nullptr : s->data() ? s->data() : ""; }
    // Exceptions must not pass through the library: they wait here until it has returned.
    template <class F> struct visitor {
        F &visit;
        std::exception_ptr thrown;
        static int call(const void *key, std::size_t key_len, const void *value, std::size_t value_len, void *self) {
            auto *v = static_cast<visitor *>(self);
            try {
                v->visit(std::string_view(static_cast<const char *>(key), key_len),
                         std::string_view(static_cast<const char *>(value), value_len));
                return 0;
            } catch (...) {
                v->thrown = std::current_exception();
                return 1;
            }
        }
        void finish(int code) {
            if (thrown)
                std::rethrow_exception(thrown);
            check(code);
        }
    };
    towa_map *handle_;
};

// A first-in first-out queue of strings (bytes) that survives. Never inside a transaction.
class queue {
  public:
    queue(pool &in, const char *name) : handle_(towa_queue_open(in.raw(), name)) {
        if (!handle_)
            throw_last_error();
    }
    queue(queue &&other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
    queue &operator=(queue &&other) noexcept {
        std::swap(handle_, other.handle_);
        return *this;
    }
    ~queue() { towa_queue_close(handle_); }

    // Appends an item.
    void push(thread &me, std::string_view item) { check(towa_queue_push(handle_, me.raw(), item.data(), item.size())); }
    // Takes the oldest item, if there is one.
    std::optional<std::string> pop(thread &me) {
        void *item = nullptr;
        std::size_t len = 0;
        const int result = towa_queue_pop(handle_, me.raw(), &item, &len);
        if (result < 0)
            throw_last_error();
        if (result == 0)
            return std::nullopt;
        const std::unique_ptr<void, void (*)(void *)> owner(item, std::free);
        return std::string(static_cast<const char *>(item), len);
    }
    std::uint64_t size() const {
        const std::int64_t count = towa_queue_count(handle_);
        if (count < 0)
            throw_last_error();
        return static_cast<std::uint64_t>(count);
    }
    towa_queue *raw() const noexcept { return handle_; }

  private:
    towa_queue *handle_;
};

} // namespace towa

// TOWA_PNEW(node, key, value), TOWA_PDELETE(node, ptr)
#define TOWA_PNEW(type, ...) ::towa::pnew<type>(__VA_ARGS__)
#define TOWA_PDELETE(type, ptr) ::towa::pdelete<type>(ptr)

#endif // TOWA_HPP
