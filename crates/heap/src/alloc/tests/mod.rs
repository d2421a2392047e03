//! Tests of the allocator as a whole. `world` is the engine they run under: it keeps a shadow of the heap, refuses writes
//! without a mark and marks against the epoch rule, and cuts an image at every epoch's end.

mod damage;
mod model;
mod space;
mod threads;
mod world;
