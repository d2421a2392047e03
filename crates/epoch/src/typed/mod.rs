//! **typed**: the safe Rust face of the epoch door. What it must always hold:
//!
//! 1. a byte of the pool is written only through a [`PMut`], whose `&mut` marks first - forgetting is impossible;
//! 2. a `PMut` exists only inside [`Root::write`], between the root's lock and the transaction's end:
//!
//! ```text
//!   lock root ── begin ── closure(Txn<'p>, PMut<'p, T>) ── commit ── unlock      locks enclose transactions
//! ```
//!
//! 3. nothing that belongs to the pool leaves the closure: every pointer type carries the brand `'p`, a lifetime that is new in
//!    each call and can be named nowhere else. So a [`PBox`] can neither escape, nor reach another pool, nor be read after it
//!    was freed - all three are compile errors.
//!
//! What is stored must be [`Persist`]; [`persist_struct!`](crate::persist_struct) makes it so and checks every field.
//!
//! ```
//! use towa_epoch::typed::{PBox, Persist};
//! use towa_epoch::{Options, Pool, field, persist_struct};
//!
//! persist_struct! {
//!     /// A stack of numbers.
//!     pub struct List<'p> { head: Option<PBox<'p, Node<'p>>> }
//! }
//! persist_struct! {
//!     /// One of them.
//!     pub struct Node<'p> { value: u64, next: Option<PBox<'p, Node<'p>>> }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let pool = Pool::volatile(&Options::default())?;
//! let mut thread = pool.register()?;
//! let list = pool.typed_root::<List>("list", &mut thread, |_| Ok(List { head: None }))?;
//! for value in 0..3 {
//!     list.write(&mut thread, |tx, root| {
//!         let head = field!(root, head).into_mut(); // marks these eight bytes
//!         let next = head.take();
//!         *head = Some(tx.boxed(Node { value, next })?);
//!         Ok::<_, towa_epoch::Error>(())
//!     })??;
//! }
//! let sum = list.read(|list| {
//!     let (mut sum, mut at) = (0, &list.head);
//!     while let Some(node) = at {
//!         sum += node.value;
//!         at = &node.next;
//!     }
//!     sum
//! })?;
//! assert_eq!(sum, 3);
//! # Ok(())
//! # }
//! ```
//!
//! # What does not compile
//!
//! A reference cannot be stored:
//! ```compile_fail,E0277
//! towa_epoch::persist_struct! { struct Bad<'p> { name: &'p str } }
//! ```
//! nor a pointer into DRAM:
//! ```compile_fail,E0277
//! towa_epoch::persist_struct! { struct Bad { names: Vec<u8> } }
//! ```
//! nor anything with interior mutability, which could be written without a mark:
//! ```compile_fail,E0277
//! towa_epoch::persist_struct! { struct Bad { n: std::sync::atomic::AtomicU64 } }
//! ```
//! A `PMut` does not leave its transaction:
//! ```compile_fail
//! # use towa_epoch::{Options, Pool};
//! # let pool = Pool::volatile(&Options::default()).unwrap();
//! # let mut thread = pool.register().unwrap();
//! let root = pool.typed_root::<u64>("n", &mut thread, |_| Ok(0)).unwrap();
//! let escaped = root.write(&mut thread, |_, n| n).unwrap();
//! ```
//! nor does a `PBox`, not even through a thread-local:
//! ```compile_fail
//! # use towa_epoch::{Options, Pool, typed::PBox};
//! # let pool = Pool::volatile(&Options::default()).unwrap();
//! # let mut thread = pool.register().unwrap();
//! thread_local! { static KEEP: std::cell::RefCell<Option<PBox<'static, u64>>> = const { std::cell::RefCell::new(None) }; }
//! let root = pool.typed_root::<u64>("n", &mut thread, |_| Ok(0)).unwrap();
//! root.write(&mut thread, |tx, _| KEEP.set(Some(tx.boxed(1u64).unwrap()))).unwrap();
//! ```
//! so nothing of one root or pool ends in another:
//! ```compile_fail
//! # use towa_epoch::{Options, Pool, typed::PBox};
//! # let pool = Pool::volatile(&Options::default()).unwrap();
//! # let mut thread = pool.register().unwrap();
//! # let root = pool.typed_root::<Option<PBox<u64>>>("n", &mut thread, |_| Ok(None)).unwrap();
//! let mut stolen = None;
//! root.write(&mut thread, |_, mut n| stolen = n.as_mut().take()).unwrap();
//! root.write(&mut thread, |_, mut n| *n.as_mut() = stolen).unwrap();
//! ```
//! Outside a transaction there is no `&mut` at all:
//! ```compile_fail,E0594
//! # use towa_epoch::{Options, Pool};
//! # let pool = Pool::volatile(&Options::default()).unwrap();
//! # let mut thread = pool.register().unwrap();
//! # let root = pool.typed_root::<u64>("n", &mut thread, |_| Ok(0)).unwrap();
//! root.read(|n| *n = 1).unwrap();
//! ```
//! and no box without one:
//! ```compile_fail
//! let forged = towa_epoch::typed::PBox::new(1u64);
//! ```
//! nor does safe code mark a line, which has the right to read it and, where the transaction can be undone, to put
//! old bytes back there, whoever has written it since:
//! ```compile_fail,E0133
//! # use towa_epoch::{Options, Pool};
//! # let pool = Pool::volatile(&Options::default()).unwrap();
//! # let mut thread = pool.register().unwrap();
//! let tx = thread.begin_undoable().unwrap();
//! tx.mark(std::ptr::without_provenance(pool.heap_range().0), 64);
//! tx.abort();
//! ```
//! by no other way either:
//! ```compile_fail,E0277
//! fn marks(tx: &impl towa_heap::alloc::Marker) { tx.mark(0, 64) }
//! # use towa_epoch::{Options, Pool};
//! # let pool = Pool::volatile(&Options::default()).unwrap();
//! # let mut thread = pool.register().unwrap();
//! marks(&thread.begin_undoable().unwrap());
//! ```
//! Two fields at once are fine, one field twice is not:
//! ```compile_fail,E0124
//! # use towa_epoch::{Options, Pool, fields};
//! # let pool = Pool::volatile(&Options::default()).unwrap();
//! # let mut thread = pool.register().unwrap();
//! towa_epoch::persist_struct! { struct Pair { a: u64, b: u64 } }
//! let root = pool.typed_root::<Pair>("n", &mut thread, |_| Ok(Pair { a: 1, b: 2 })).unwrap();
//! root.write(&mut thread, |_, pair| { let (x, y) = fields!(pair, a, a); }).unwrap();
//! ```

mod pbox;
mod persist;
mod pmut;
pub mod registry;
mod root;
pub mod scope;

pub use pbox::{PBox, Txn};
pub use persist::{Layout, Persist, describe, type_tag};
#[doc(hidden)]
pub use persist::{MustNotImplDeref, MustNotImplDrop, branded, field_align, unbranded};
pub use pmut::PMut;
pub use root::Root;
