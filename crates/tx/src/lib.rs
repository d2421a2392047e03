//! **tx**: durable transactions on a heap in DRAM. Each is atomic, isolated, and durable when the call returns.
