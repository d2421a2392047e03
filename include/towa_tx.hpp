// towa_tx.hpp - durable transactions and durable ordered maps, for C++17. A header over towa_tx.h: read that one's opening comment first;
// its rules hold here too. What this layer adds:
//
//   towa::dtx::pool, thread    RAII over the handles
//   thread.transaction(f)      runs f(tx) as one transaction; gives what f returns. An exception that leaves f rolls the transaction
//                              back and is raised again from here
//   towa::dtx::tx              reads and writes of words by their C++ type; calls that fail throw, so bodies pass nothing on by hand
//   towa::dtx::tree<K>         ordered maps of K (std::uint64_t, or std::string for byte strings) to std::uint64_t, and
//   towa::dtx::session<K>      a thread's way to one, with range-for over its entries
//   towa::error and children   instead of codes, as in towa.hpp
//
//     towa::dtx::pool pool("/mnt/pmem/bank");
//     towa::dtx::thread me(pool);
//     me.transaction([&](towa::dtx::tx &tx) {
//         const auto has = tx.read(account[0]);
//         if (has < 10)
//             throw std::runtime_error("not enough money");        // nothing of it happened
//         tx.write(account[0], has - 10);
//         tx.write(account[1], tx.read(account[1]) + 10);
//     });                                                          // here it is durable
//
// A body may run several times, and only its last run counts: what it captures it sets anew in each run, or leaves alone. It lets
// exceptions of tx pass: one that it swallows does not save the transaction, which then ends in that failure all the same.
#ifndef TOWA_TX_HPP
#define TOWA_TX_HPP

#include "towa_tx.h"

#include "towa/pool.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <filesystem>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace towa::dtx {

// towa_dtx_options with the defaults filled in; the fields are documented there.
struct options : towa_dtx_options {
    options() : towa_dtx_options TOWA_DTX_OPTIONS_INIT {}
};

namespace detail {

// What a call in a body gave. No std::exception: only the runner knows what to do with it.
struct passed_on {
    int code;
};
// 1 for yes, 0 for no, else a code.
inline bool yes(int result) {
    if (result < 0)
        throw_last_error();
    return result != 0;
}
// A handle that is closed once, before what it lies in: a pool that goes before its threads and trees is closed with
// the last of them.
template <class H, int (*Close)(H *)> class handle {
  public:
    explicit handle(H *opened, std::shared_ptr<void> in = nullptr) : it_(own(opened, std::move(in))) {}
    handle(handle &&other) noexcept = default;
    // What it was before goes with `other`.
    handle &operator=(handle &&other) noexcept {
        std::swap(it_, other.it_);
        return *this;
    }
    // Throws busy, and it stays open, while something in it is in use.
    void close() {
        if (!it_ || !it_->raw)
            return;
        const int code = Close(it_->raw);
        if (code != TOWA_EBUSY)
            it_->raw = nullptr;
        check(code);
    }
    H *raw() const {
        if (!it_ || !it_->raw)
            throw usage_error(TOWA_EUSAGE, "this handle was closed or moved from");
        return it_->raw;
    }
    // Keeps it open for as long as the result or a copy lives, unless it is closed by close().
    std::shared_ptr<void> shared() const { return it_; }

  private:
    struct owner {
        H *raw;
        std::shared_ptr<void> in;

        owner(H *opened, std::shared_ptr<void> lies_in) : raw(opened), in(std::move(lies_in)) {}
        owner(const owner &) = delete;
        owner &operator=(const owner &) = delete;
        // Errors are lost here.
        ~owner() {
            if (raw)
                (void)Close(raw);
        }
    };
    static std::shared_ptr<owner> own(H *opened, std::shared_ptr<void> in) {
        if (!opened)
            throw_last_error();
        try {
            return std::make_shared<owner>(opened, std::move(in));
        } catch (...) {
            (void)Close(opened);
            throw;
        }
    }
    std::shared_ptr<owner> it_;
};

} // namespace detail

// An open pool of transactions. Brings up the image and closes when it and all its threads and trees went out of
// scope; close() tells whether that went well.
class pool : public detail::handle<towa_dtx_pool, towa_dtx_pool_close> {
  public:
    // Opens (recovering, if need be) or creates.
    explicit pool(const std::filesystem::path &path, const options &o = {}) : handle(towa_dtx_pool_open(path.c_str(), &o)) {}

    // The object root `name` points to; nullptr if there is no such root. Throws type_mismatch if it is of another type.
    template <class T> T *root(const char *name) const { return root<T>(name, type_tag<T>()); }
    template <class T> T *root(const char *name, std::uint64_t tag) const {
        void *object = nullptr;
        const int code = towa_dtx_pool_root(raw(), name, tag, sizeof(T), &object);
        if (code == TOWA_ENOENT)
            return nullptr;
        check(code);
        return static_cast<T *>(object);
    }
    // Returns when everything committed before the call is durable (buffered commits).
    void sync() { check(towa_dtx_pool_sync(raw())); }
    // Brings up the image now.
    void checkpoint() { check(towa_dtx_pool_checkpoint(raw())); }
    struct towa_dtx_stats stats() const {
        struct towa_dtx_stats s = {};
        s.size = sizeof s;
        check(towa_dtx_pool_stats(raw(), &s));
        return s;
    }
};

// The running transaction, for its body only. Every call that fails throws; let that pass.
class tx {
  public:
    explicit tx(towa_dtx *raw) : raw_(raw) {}
    tx(const tx &) = delete;
    tx &operator=(const tx &) = delete;

    // What `at` holds: a number, pointer or other plain type of 8 bytes in the heap.
    template <class T> T read(const T &at) {
        is_word<T>();
        std::uint64_t word = 0;
        pass_on(towa_dtx_read(raw_, reinterpret_cast<const std::uint64_t *>(&at), &word));
        T value;
        std::memcpy(&value, &word, sizeof value);
        return value;
    }
    // Writes it.
    template <class T> void write(T &at, const std::common_type_t<T> &value) {
        is_word<T>();
        std::uint64_t word = 0;
        std::memcpy(&word, &value, sizeof word);
        pass_on(towa_dtx_write(raw_, reinterpret_cast<std::uint64_t *>(&at), word));
    }
    // A block of at least `size` bytes, this transaction's own until it takes effect. Its content is unspecified.
    void *alloc(std::size_t size) {
        void *block = nullptr;
        pass_on(towa_dtx_alloc(raw_, size, &block));
        return block;
    }
    // A new object in the heap, which holds `value`.
    template <class T> T *make(const T &value = T()) {
        static_assert(std::is_trivially_copyable_v<T> && alignof(T) <= TOWA_ALLOC_ALIGN, "only plain data lies in the heap");
        void *block = alloc(sizeof(T));
        pass_on(towa_dtx_init(raw_, block, &value, sizeof(T)));
        return static_cast<T *>(block);
    }
    // Frees a block when the transaction takes effect; nullptr is fine.
    void free(void *block) { pass_on(towa_dtx_free(raw_, block)); }
    // The object root `name` points to, as part of what the transaction reads; nullptr if there is no such root.
    template <class T> T *root(const char *name) { return root<T>(name, type_tag<T>()); }
    template <class T> T *root(const char *name, std::uint64_t tag) {
        void *object = nullptr;
        pass_on(towa_dtx_root(raw_, name, tag, sizeof(T), &object));
        return static_cast<T *>(object);
    }
    // Makes `object` root `name`; nullptr removes the root.
    template <class T> void set_root(const char *name, T *object) { set_root(name, object, type_tag<T>()); }
    template <class T> void set_root(const char *name, T *object, std::uint64_t tag) {
        pass_on(towa_dtx_set_root(raw_, name, tag, sizeof(T), object));
    }
    // Has the body run again: to wait until another thread has changed something.
    [[noreturn]] void again() { throw detail::passed_on{TOWA_DTX_AGAIN}; }
    // For the functions of towa_tx.h.
    towa_dtx *raw() const noexcept { return raw_; }

  private:
    template <class T> static constexpr void is_word() {
        static_assert(sizeof(T) == 8 && alignof(T) == 8 && std::is_trivially_copyable_v<T>, "words are plain types of 8 bytes");
    }
    static void pass_on(int code) {
        if (code != TOWA_OK)
            throw detail::passed_on{code};
    }
    towa_dtx *raw_;
};

// A log of the pool, for one thread at a time.
class thread : public detail::handle<towa_dtx_thread, towa_dtx_unregister> {
  public:
    explicit thread(pool &in) : handle(towa_dtx_register(in.raw()), in.shared()) {}

    // Runs `body(tx)` as one transaction and gives what it returned; durable then, where commits are strict. Inside a body of the same
    // thread it is a part of the outer transaction, all of which an exception rolls back.
    template <class F> auto transaction(F &&body) { return run(towa_dtx_run, body); }
    // The same, in software at once: for bodies that allocate, free, or write much.
    template <class F> auto transaction_software(F &&body) { return run(towa_dtx_run_software, body); }

  private:
    // An exception stops here on its way through the library, which is not C++.
    template <class F, class R> struct attempt {
        F &body;
        thread &me;
        std::optional<R> result;
        std::exception_ptr raised;

        static int run(towa_dtx *raw, void *arg) noexcept {
            auto &self = *static_cast<attempt *>(arg);
            self.result.reset();
            self.raised = nullptr;
            if (self.me.depth_ == 1)
                self.me.inner_ = nullptr;
            try {
                tx running(raw);
                if constexpr (std::is_same_v<R, std::monostate>) {
                    self.body(running);
                    self.result.emplace();
                } else {
                    self.result.emplace(self.body(running));
                }
                return 0;
            } catch (const detail::passed_on &failed) {
                return failed.code;
            } catch (...) {
                self.raised = std::current_exception();
                if (self.me.depth_ > 1 && !self.me.inner_)
                    self.me.inner_ = self.raised;
                return 1;
            }
        }
    };
    template <class F> auto run(int (*how)(towa_dtx_thread *, towa_dtx_body, void *), F &body) {
        using given = std::invoke_result_t<F &, tx &>;
        using kept = std::conditional_t<std::is_void_v<given>, std::monostate, given>;
        attempt<F, kept> it{body, *this, {}, {}};
        towa_dtx_thread *const log = raw();
        depth_++;
        const int code = how(log, attempt<F, kept>::run, &it);
        depth_--;
        if (it.raised)
            std::rethrow_exception(it.raised);
        // An inner transaction threw, the outer body did not let that pass, and the outer transaction ends in it all
        // the same.
        if (code > 0 && depth_ == 0 && inner_)
            std::rethrow_exception(std::exchange(inner_, nullptr));
        check(code);
        if constexpr (!std::is_void_v<given>)
            return std::move(*it.result);
    }
    // Transactions that run in one another, and what the first inner one threw in this run of the outermost.
    int depth_ = 0;
    std::exception_ptr inner_;
};

template <class K> class session;

// An ordered map in a pool, or in a directory of its own.
template <class K> class tree : public detail::handle<towa_tree, towa_tree_close> {
    static_assert(std::is_same_v<K, std::uint64_t> || std::is_same_v<K, std::string>, "keys are std::uint64_t or std::string");

  public:
    static constexpr unsigned keys = std::is_same_v<K, std::string> ? TOWA_TREE_BYTES : TOWA_TREE_U64;

    // The B+-tree named `name` in `in`, created if there is none.
    tree(pool &in, const char *name) : handle(towa_tree_open(in.raw(), name, keys), in.shared()) {}
    // The FPTree in directory `path`.
    explicit tree(const std::filesystem::path &path, const towa_tree_options *o = nullptr)
        : handle(towa_tree_open_fp(path.c_str(), o, keys)) {}

    // Removes the B+-tree named `name` in `in`, which is not open, and gives its space back.
    static void destroy(pool &in, const char *name) { check(towa_tree_destroy(in.raw(), name, keys)); }

    // Number of keys, while nobody writes.
    std::uint64_t count() const {
        const auto n = towa_tree_count(raw());
        if (n < 0)
            throw_last_error();
        return static_cast<std::uint64_t>(n);
    }
    // Throws damaged, if anything is wrong with it.
    void verify() const { check(towa_tree_check(raw())); }
    // Fills the tree, which is empty and has no sessions, with the pairs of key and value in `entries` (a std::map, a sorted vector of
    // pairs), by rising keys: how many there were.
    template <class Entries> std::uint64_t bulk_load(const Entries &entries) {
        std::vector<const void *> at;
        std::vector<std::size_t> lens;
        std::vector<std::uint64_t> values;
        for (const auto &[key, value] : entries) {
            static_assert(std::is_same_v<std::decay_t<decltype(key)>, K>, "entries are pairs of the tree's keys and numbers");
            static_assert(std::is_reference_v<decltype(*std::begin(entries))>, "entries lie somewhere until they are loaded");
            if constexpr (std::is_same_v<K, std::string>) {
                at.push_back(key.data());
                lens.push_back(key.size());
            } else {
                at.push_back(&key);
            }
            values.push_back(value);
        }
        const auto n = towa_tree_bulk_load(raw(), at.data(), lens.empty() ? nullptr : lens.data(), values.data(), values.size());
        if (n < 0)
            throw_last_error();
        return static_cast<std::uint64_t>(n);
    }
};

// One thread's way to a tree. Never in a body.
template <class K> class session : public detail::handle<towa_tree_session, towa_tree_session_close> {
  public:
    // How keys are given.
    using key_view = std::conditional_t<std::is_same_v<K, std::string>, std::string_view, K>;
    using entry = std::pair<K, std::uint64_t>;

    explicit session(tree<K> &in) : handle(towa_tree_session_open(in.raw()), in.shared()) {}

    // Adds `key`, unless it is there; whether it was added.
    bool insert(key_view key, std::uint64_t value) { return detail::yes(towa_tree_insert(raw(), at(key), len(key), value)); }
    // Adds `key` or changes its value; the value before.
    std::optional<std::uint64_t> upsert(key_view key, std::uint64_t value) {
        std::uint64_t old = 0;
        return detail::yes(towa_tree_upsert(raw(), at(key), len(key), value, &old)) ? std::nullopt : std::optional(old);
    }
    std::optional<std::uint64_t> get(key_view key) {
        std::uint64_t value = 0;
        return detail::yes(towa_tree_get(raw(), at(key), len(key), &value)) ? std::optional(value) : std::nullopt;
    }
    // Removes `key`; the value it had.
    std::optional<std::uint64_t> erase(key_view key) {
        std::uint64_t old = 0;
        return detail::yes(towa_tree_remove(raw(), at(key), len(key), &old)) ? std::optional(old) : std::nullopt;
    }

    // Entries in order, read some at a time: what is there all the while is given once.
    class iterator {
      public:
        using iterator_category = std::input_iterator_tag;
        using value_type = entry;
        using difference_type = std::ptrdiff_t;
        using pointer = const entry *;
        using reference = const entry &;

        iterator() = default;
        reference operator*() const { return some_[next_]; }
        pointer operator->() const { return &some_[next_]; }
        iterator &operator++() {
            if (++next_ == some_.size())
                read(some_.back().first, TOWA_TREE_AFTER_FROM);
            return *this;
        }
        void operator++(int) { ++*this; }
        bool operator==(const iterator &other) const { return in_ == other.in_; }
        bool operator!=(const iterator &other) const { return in_ != other.in_; }

      private:
        friend class session;
        iterator(session *in, std::optional<K> from, std::optional<K> to) : in_(in), to_(std::move(to)) { read(std::move(from), 0); }
        // The next entries; at the end it equals every other that is.
        void read(std::optional<K> from, unsigned flags) {
            some_.clear();
            next_ = 0;
            in_->scan(from, to_, flags, [this](key_view key, std::uint64_t value) {
                some_.emplace_back(K(key), value);
                return some_.size() < 64;
            });
            if (some_.empty())
                in_ = nullptr;
        }
        session *in_ = nullptr;
        std::optional<K> to_;
        std::vector<entry> some_;
        std::size_t next_ = 0;
    };
    iterator begin() { return iterator(this, std::nullopt, std::nullopt); }
    iterator end() { return iterator(); }
    // For range-for over the keys from `from` on and below `to`; none is no bound.
    struct range_of {
        session *in;
        std::optional<K> from, to;
        iterator begin() const { return iterator(in, from, to); }
        iterator end() const { return iterator(); }
    };
    range_of range(std::optional<K> from, std::optional<K> to = std::nullopt) { return {this, std::move(from), std::move(to)}; }

    // Calls visit(key, value) for the entries with from <= key < to, in order, until it gives false; an exception that leaves it ends the
    // scan and is raised again. `flags`: TOWA_REVERSE and towa_tree_scan's. `visit` uses no session of its thread but others.
    template <class F> void scan(const std::optional<K> &from, const std::optional<K> &to, unsigned flags, F &&visit) {
        struct state {
            F &visit;
            std::exception_ptr raised;
        } it{visit, {}};
        const auto each = [](const void *key, std::size_t key_len, std::uint64_t value, void *arg) noexcept -> int {
            auto &self = *static_cast<state *>(arg);
            try {
                return self.visit(view(key, key_len), value) ? 0 : 1;
            } catch (...) {
                self.raised = std::current_exception();
                return 1;
            }
        };
        const int code = towa_tree_scan(raw(), from ? at(*from) : nullptr, from ? len(*from) : 0, to ? at(*to) : nullptr,
                                        to ? len(*to) : 0, flags, each, &it);
        if (it.raised)
            std::rethrow_exception(it.raised);
        if (code < 0)
            throw_last_error();
    }

  private:
    static const void *at(const std::uint64_t &key) { return &key; }
    static const void *at(std::string_view key) { return key.data() ? key.data() : ""; }
    static std::size_t len(const std::uint64_t &) { return 8; }
    static std::size_t len(std::string_view key) { return key.size(); }
    static key_view view(const void *key, std::size_t key_len) {
        if constexpr (std::is_same_v<K, std::string>) {
            return std::string_view(static_cast<const char *>(key), key_len);
        } else {
            K number;
            std::memcpy(&number, key, sizeof number);
            return number;
        }
    }
};

} // namespace towa::dtx

#endif // TOWA_TX_HPP
