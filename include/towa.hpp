// towa.hpp - in-memory data structures that survive a crash, for C++17. A header over towa.h: read that one's opening comment
// first; its five rules hold here too. What this layer adds:
//
//   towa::pool, towa::thread      RAII over the handles
//   towa::transaction             takes the locks, then starts; ends, then releases them (rule 2 cannot be broken);
//                                 an exception that leaves its scope rolls it back
//   towa::p<T>                    a field that marks itself before it is written (rule 1 cannot be forgotten)
//   towa::make / towa::destroy    new and delete in the heap; marked before construction
//   towa::map, towa::queue        the library's containers, with strings for keys and values
//   towa::vector<T>               and the one of plain values
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

#include "towa/container.hpp"
#include "towa/error.hpp"
#include "towa/object.hpp"
#include "towa/pool.hpp"
#include "towa/transaction.hpp"

// TOWA_PNEW(node, key, value), TOWA_PDELETE(node, ptr)
#define TOWA_PNEW(type, ...) ::towa::pnew<type>(__VA_ARGS__)
#define TOWA_PDELETE(type, ptr) ::towa::pdelete<type>(ptr)

#endif // TOWA_HPP
