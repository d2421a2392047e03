//! One shared handle per root name of a pool, so that two handles of one root always share its locks.
//!
//! Entries are weak: what they lead to holds the [`Pool`], and the pool must not hold it. Opening may fail and may run a
//! transaction, so the map of names is not locked meanwhile; only the name is.

use crate::{Error, Pool};
use parking_lot::Mutex;
use std::any::Any;
use std::collections::HashMap;
use std::sync::{Arc, Weak};

type Slot = Arc<Mutex<Weak<dyn Any + Send + Sync>>>;

#[derive(Default)]
struct Handles(Mutex<HashMap<String, Slot>>);

/// The handle of root `name`, made by `open` if nobody has it. `open` runs alone for this name.
///
/// # Errors
/// Those of `open`, and [`Error::Usage`] if the root is open as another kind of thing.
pub fn shared<S, E>(pool: &Pool, name: &str, open: impl FnOnce() -> std::result::Result<S, E>) -> std::result::Result<Arc<S>, E>
where
    S: Any + Send + Sync,
    E: From<Error>,
{
    let slot = slot(pool, name)?;
    let mut weak = slot.lock();
    if let Some(live) = weak.upgrade() {
        return live
            .downcast::<S>()
            .map_err(|_| Error::Usage(format!("root {name:?} is open as another kind of object: use one kind per name")).into());
    }
    let made = Arc::new(open()?);
    let erased: Arc<dyn Any + Send + Sync> = made.clone();
    *weak = Arc::downgrade(&erased);
    Ok(made)
}

fn slot(pool: &Pool, name: &str) -> crate::Result<Slot> {
    let handles = pool.shared("towa handles by root", Handles::default)?;
    let vacant: fn() -> Slot = || Arc::new(Mutex::new(Weak::<()>::new() as Weak<dyn Any + Send + Sync>));
    Ok(handles.0.lock().entry(name.to_owned()).or_insert_with(vacant).clone())
}
