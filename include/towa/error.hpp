// error.hpp - the codes of towa.h as exceptions. A part of towa.hpp: include that one.
#ifndef TOWA_ERROR_HPP
#define TOWA_ERROR_HPP

#include "../towa.h"

#include <stdexcept>
#include <string>

namespace towa {

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

} // namespace towa

#endif // TOWA_ERROR_HPP
