//! **alloc**: an allocator inside durable bytes, for what lives there in place.
