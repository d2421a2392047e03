// container.hpp - the library's containers. A part of towa.hpp: include that one.
#ifndef TOWA_CONTAINER_HPP
#define TOWA_CONTAINER_HPP

#include "pool.hpp"

#include <cstdint>
#include <cstdlib>
#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace towa {

namespace detail {

// 1 for yes, 0 for no, else a code.
inline bool yes(int result) {
    if (result < 0)
        throw_last_error();
    return result != 0;
}
inline std::uint64_t count(std::int64_t result) {
    if (result < 0)
        throw_last_error();
    return static_cast<std::uint64_t>(result);
}

} // namespace detail

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
        return detail::yes(towa_map_put(handle_, me.raw(), key.data(), key.size(), value.data(), value.size()));
    }
    // Removes `key`; whether it was there.
    bool erase(thread &me, std::string_view key) { return detail::yes(towa_map_delete(handle_, me.raw(), key.data(), key.size())); }
    // A copy of its value.
    std::optional<std::string> get(std::string_view key) const {
        std::string value(64, '\0');
        for (;;) {
            std::size_t len = 0;
            if (!detail::yes(towa_map_get(handle_, key.data(), key.size(), &value[0], value.size(), &len)))
                return std::nullopt;
            const bool whole = len <= value.size(); // else it has to be asked again, and may have changed meanwhile
            value.resize(len);
            if (whole)
                return value;
        }
    }
    std::uint64_t size() const { return detail::count(towa_map_count(handle_)); }
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
        if (!detail::yes(towa_queue_pop(handle_, me.raw(), &item, &len)))
            return std::nullopt;
        const std::unique_ptr<void, void (*)(void *)> owner(item, std::free);
        return std::string(static_cast<const char *>(item), len);
    }
    std::uint64_t size() const { return detail::count(towa_queue_count(handle_)); }
    towa_queue *raw() const noexcept { return handle_; }

  private:
    towa_queue *handle_;
};

// A vector of plain values that survives: it grows at its end and never moves a value. Never inside a transaction. One that C opened
// with sizeof(T) is the same.
template <class T> class vector {
    static_assert(std::is_trivially_copyable_v<T>, "a vector holds plain data: its bytes are what is kept");
    static_assert(sizeof(T) <= TOWA_VECTOR_ITEM_MAX, "larger values belong in a map");

  public:
    vector(pool &in, const char *name) : handle_(towa_vector_open(in.raw(), name, sizeof(T))) {
        if (!handle_)
            throw_last_error();
    }
    vector(vector &&other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
    vector &operator=(vector &&other) noexcept {
        std::swap(handle_, other.handle_);
        return *this;
    }
    ~vector() { towa_vector_close(handle_); }

    // A copy of the value at `index`, if there is one.
    std::optional<T> get(std::uint64_t index) const {
        room copy;
        return copy.filled(towa_vector_get(handle_, index, copy.bytes));
    }
    // Replaces the value at `index`; whether there is one.
    bool set(thread &me, std::uint64_t index, const T &value) {
        return detail::yes(towa_vector_set(handle_, me.raw(), index, std::addressof(value)));
    }
    // Appends a value; gives its index.
    std::uint64_t push(thread &me, const T &value) {
        std::uint64_t index = 0;
        check(towa_vector_push(handle_, me.raw(), std::addressof(value), &index));
        return index;
    }
    // Takes the last value, if there is one.
    std::optional<T> pop(thread &me) {
        room copy;
        return copy.filled(towa_vector_pop(handle_, me.raw(), copy.bytes));
    }
    std::uint64_t size() const { return detail::count(towa_vector_count(handle_)); }
    towa_vector *raw() const noexcept { return handle_; }

  private:
    // Where a value is copied to: a T need not have a default constructor.
    struct room {
        alignas(T) unsigned char bytes[sizeof(T)];
        std::optional<T> filled(int result) {
            if (!detail::yes(result))
                return std::nullopt;
            return *std::launder(reinterpret_cast<T *>(bytes));
        }
    };
    towa_vector *handle_;
};

} // namespace towa

#endif // TOWA_CONTAINER_HPP
