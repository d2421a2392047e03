//! **xip**: executables in two files, whose code pages are mapped from NVM on a stock kernel (OFF2F).

pub mod error;
pub mod format;
pub mod trace;
pub mod traced;

pub use error::{Error, Result};
