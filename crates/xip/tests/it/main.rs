//! Tests of splitting, joining and of what a store holds, with programs of this machine and with made ones.

mod failing_device;
mod foreign;
mod full;
mod hostile;
mod install_kill;
mod made_elf;
mod moved;
mod power;
mod real_work;
mod refused;
mod sweep_support;
mod userland;
