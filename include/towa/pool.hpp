// pool.hpp - type tags, options, open pools and attached threads. A part of towa.hpp: include that one.
#ifndef TOWA_POOL_HPP
#define TOWA_POOL_HPP

#include "error.hpp"

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <typeinfo>
#include <utility>

namespace towa {

// What a root's type is called in the pool. Specialise it to share a root with C, or to change the name with the layout:
//     template <> struct towa::type_name<list> { static std::string get() { return "struct list"; } };
template <class T> struct type_name {
    static std::string get() { return typeid(T).name(); }
};
template <class T> std::uint64_t type_tag() { return towa_type_tag(type_name<T>::get().c_str()); }

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

} // namespace towa

#endif // TOWA_POOL_HPP
