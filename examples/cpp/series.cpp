// series.cpp - measurements in a towa::vector, which survives kill -9.
//
//     series POOL add VALUE     appends a measurement, and is durable when the command returns
//     series POOL fix N VALUE   replaces number N
//     series POOL dump          prints NUMBER VALUE, a line each
//     series POOL fill          appends for ever; prints "durable COUNT" now and then
//
//     c++ -std=c++17 series.cpp $(pkg-config --cflags --libs towa) -o series
//
// series.c reads its pools, and the other way round: a vector is known by its name and the size of its values.
#include <cstdint>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>
#include <towa.hpp>

// Plain data: its bytes are what is kept.
struct sample {
    std::uint64_t number;
    double value;
};

static void fill(towa::pool &pool, towa::thread &me, towa::vector<sample> &series) {
    for (;;) {
        const std::uint64_t i = series.size();
        series.push(me, sample{i, static_cast<double>(i) / 2});
        if (i % 1000 == 999) {
            pool.sync(); // all that was pushed before is durable after it
            std::printf("durable %llu\n", static_cast<unsigned long long>(i + 1));
            std::fflush(stdout);
        }
    }
}

int main(int argc, char **argv) try {
    const std::string verb = argc > 2 ? argv[2] : "";
    if (!(verb == "add" && argc == 4) && !(verb == "fix" && argc == 5) && !((verb == "dump" || verb == "fill") && argc == 3)) {
        std::fprintf(stderr, "usage: series POOL add VALUE | fix N VALUE | dump | fill\n");
        return 2;
    }
    towa::options options;
    options.heap_len = 256u << 20;
    towa::pool pool(argv[1], options);
    {
        towa::thread me(pool);
        towa::vector<sample> series(pool, "series");
        if (verb == "add")
            series.push(me, sample{series.size(), std::stod(argv[3])});
        if (verb == "fix") {
            const std::uint64_t number = std::stoull(argv[3]);
            if (!series.set(me, number, sample{number, std::stod(argv[4])}))
                throw std::out_of_range("there is no number " + std::string(argv[3]));
        }
        if (verb == "dump")
            for (std::uint64_t i = 0; const auto s = series.get(i); i++)
                std::printf("%llu %g\n", static_cast<unsigned long long>(s->number), s->value);
        if (verb == "fill")
            fill(pool, me, series);
    }
    pool.close(); // makes the last epoch durable, and says so if it could not
    return 0;
} catch (const std::exception &e) {
    std::fprintf(stderr, "series: %s\n", e.what());
    return 1;
}
