// expect.hpp - what the C++ tests check with. A test counts what is not so in `failures`; `path` is where it may make its pool.
#pragma once
#include <cstdio>
#include <cstring>
#include <string>

static int failures;
static std::string path;

#define EXPECT(...)                                                                                                                          \
    do {                                                                                                                                     \
        if (!(__VA_ARGS__)) {                                                                                                                \
            std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #__VA_ARGS__);                                                    \
            failures++;                                                                                                                      \
        }                                                                                                                                    \
    } while (0)
#define EXPECT_THROW(type, ...)                                                                                                              \
    do {                                                                                                                                     \
        bool thrown_ = false;                                                                                                                \
        try {                                                                                                                                \
            __VA_ARGS__;                                                                                                                     \
        } catch (const type &e) {                                                                                                            \
            thrown_ = std::strlen(e.what()) > 0;                                                                                             \
        }                                                                                                                                    \
        EXPECT(thrown_ && #type && #__VA_ARGS__);                                                                                            \
    } while (0)
