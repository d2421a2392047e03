//! **xip**: executables in two files, whose code pages are mapped from NVM on a stock kernel (OFF2F).

pub mod budget;
pub mod error;
pub mod figure;
pub mod format;
pub mod model;
pub mod traced;

pub use error::{Error, Result};
