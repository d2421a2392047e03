//! What may be stored: [`Persist`], the macro that derives it, and the description from which a root's type tag is made.
//!
//! The tag covers everything reachable by type: names, offsets and sizes of all fields, through every [`PBox`](super::PBox). A
//! program whose `Node` changed cannot open a list made of the old `Node`, even when the root's own type is unchanged.

use std::any::TypeId;
use std::fmt::Write;

/// Types whose bytes mean the same to every process that opens the pool.
///
/// Made with [`persist_struct!`](crate::persist_struct). Implemented here for integers, floats, `bool`, `char`, `()`, arrays,
/// tuples up to four, [`PBox`](super::PBox) and `Option<PBox>`.
///
/// # Safety
/// The implementer promises that the type
/// - holds no reference, no pointer except `PBox`, nothing that means something to one process only (handles, thread ids);
/// - has no interior mutability, no `Drop`, and implements neither `Deref` nor `DerefMut`, unless all that is written there is
///   written through a `PMut`;
/// - keeps its layout as long as [`describe`](Persist::describe) says the same (`repr(C)`, or offsets included);
/// - is the same type as [`At<'p>`](Persist::At) but for the brand lifetime, which is that of every box in it.
pub unsafe trait Persist: Send + Sync + Sized {
    /// This type with its brand replaced by `'p`.
    type At<'p>: Persist + 'p;
    /// Writes the type's name and layout.
    fn describe(layout: &mut Layout);
}

/// A description of types under construction; see [`Persist::describe`].
#[derive(Debug, Default)]
pub struct Layout {
    text: String,
    /// Types met so far. Recursion ends here. (Not their names: two types of one path and size are two, in two
    /// blocks of a function or in two versions of a crate.)
    seen: Vec<TypeId>,
}

impl Layout {
    /// A type without parts.
    pub fn scalar<T>(&mut self, name: &str) {
        let _ = write!(self.text, "{name}:{}/{}", size_of::<T>(), align_of::<T>());
    }

    /// A type with parts; `parts` describes them, and runs only where the type is met first.
    pub fn composite<T: Persist>(&mut self, name: &str, parts: impl FnOnce(&mut Layout)) {
        let id = TypeId::of::<T::At<'static>>();
        if let Some(n) = self.seen.iter().position(|s| *s == id) {
            let _ = write!(self.text, "{name}#{n}");
            return;
        }
        self.seen.push(id);
        let _ = write!(self.text, "{name}:{}/{}{{", size_of::<T>(), align_of::<T>());
        parts(self);
        self.text.push('}');
    }

    /// A part of type `T`, `offset` bytes from the start.
    pub fn field<T: Persist>(&mut self, name: &str, offset: usize) {
        let _ = write!(self.text, "{name}@{offset}=");
        T::describe(self);
        self.text.push(',');
    }

    /// A pointer to a `T`.
    pub fn pointer<T: Persist>(&mut self) {
        self.text.push('*');
        T::describe(self);
    }
}

/// The description of `T`, for messages and tests.
pub fn describe<T: Persist>() -> String {
    let mut layout = Layout::default();
    T::describe(&mut layout);
    layout.text
}

/// What a root of type `T` is tagged with: FNV-1a of [`describe`]. It guards against mistakes, not against malice.
pub fn type_tag<T: Persist>() -> u64 {
    describe::<T>().bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3))
}

macro_rules! scalars {
    ($($t:tt)*) => { $(
        // SAFETY: plain bytes without pointers, interior mutability or Drop; the layout is fixed by the language.
        unsafe impl Persist for $t {
            type At<'p> = $t;
            fn describe(layout: &mut Layout) { layout.scalar::<$t>(stringify!($t)); }
        }
    )* };
}
scalars! { u8 u16 u32 u64 u128 usize i8 i16 i32 i64 i128 isize f32 f64 bool char () }

// SAFETY: an array is its elements one after another.
unsafe impl<T: Persist, const N: usize> Persist for [T; N] {
    type At<'p> = [T::At<'p>; N];
    fn describe(layout: &mut Layout) {
        layout.composite::<Self>(&format!("[{N}]"), |l| l.field::<T>("0", 0));
    }
}

macro_rules! tuples {
    ($(($($t:ident $i:tt),+))*) => { $(
        // SAFETY: a tuple is its parts; the offsets, which the compiler chooses, are in the description.
        unsafe impl<$($t: Persist),+> Persist for ($($t,)+) {
            type At<'p> = ($($t::At<'p>,)+);
            fn describe(layout: &mut Layout) {
                layout.composite::<Self>("tuple", |l| { $( l.field::<$t>(stringify!($i), std::mem::offset_of!(Self, $i)); )+ });
            }
        }
    )* };
}
tuples!((A 0) (A 0, B 1) (A 0, B 1, C 2) (A 0, B 1, C 2, D 3));

/// Compiles if all boxes in `T` carry the brand `'p`: one with another brand (say `'static`) could leave its transaction.
#[doc(hidden)]
pub fn branded<'p, T: Persist<At<'p> = T>>() {}

/// Compiles if there are no boxes in `T`.
#[doc(hidden)]
pub fn unbranded<T: for<'p> Persist<At<'p> = T>>() {}

/// Alignment of the field of an `S` that `at` gives the address of.
#[doc(hidden)]
#[must_use]
pub const fn field_align<S, F>(_at: fn(&S) -> *const F) -> usize {
    align_of::<F>()
}

/// Implemented for everything that has a `Drop`, so that a stored type cannot have one too.
#[doc(hidden)]
pub trait MustNotImplDrop {}
#[expect(drop_bounds, reason = "the bound is the point: it makes a second impl conflict")]
impl<T: Drop> MustNotImplDrop for T {}

/// Likewise for `Deref`: `field!` must reach the type's own fields, never run code.
#[doc(hidden)]
pub trait MustNotImplDeref {}
impl<T: std::ops::Deref> MustNotImplDeref for T {}

/// Defines a struct that can live in a pool: `repr(C)`, and [`Persist`](crate::typed::Persist) if every field is.
///
/// At most one parameter, the brand lifetime, which a struct has when it holds a [`PBox`](crate::typed::PBox).
///
/// ```
/// use towa_epoch::{persist_struct, typed::PBox};
/// persist_struct! {
///     /// An account.
///     #[derive(Clone, Copy, Debug)]
///     pub struct Account { pub id: u64, pub balance: i64 }
/// }
/// persist_struct! {
///     struct Ledger<'p> { count: u64, last: Option<PBox<'p, Account>> }
/// }
/// assert_ne!(towa_epoch::typed::type_tag::<Account>(), towa_epoch::typed::type_tag::<Ledger>());
/// ```
/// A type with a destructor is refused, because nobody would run it:
/// ```compile_fail,E0119
/// towa_epoch::persist_struct! { struct Bad { n: u64 } }
/// impl Drop for Bad { fn drop(&mut self) {} }
/// ```
/// and so is a box with a brand of its own, which could leave its transaction:
/// ```compile_fail,E0308
/// towa_epoch::persist_struct! { struct Bad { b: Option<towa_epoch::typed::PBox<'static, u64>> } }
/// ```
/// and a struct whose fields are not aligned, to which there are no references:
/// ```compile_fail,E0080
/// towa_epoch::persist_struct! { #[repr(packed)] struct Bad { a: u8, b: u64 } }
/// ```
/// ```compile_fail,E0080
/// towa_epoch::persist_struct! { #[repr(packed(4))] struct Bad<'p> { a: u32, b: towa_epoch::typed::PBox<'p, u64> } }
/// ```
#[macro_export]
macro_rules! persist_struct {
    ($(#[$meta:meta])* $vis:vis struct $name:ident<$p:lifetime> { $($(#[$fmeta:meta])* $fvis:vis $field:ident : $ty:ty),* $(,)? }) => {
        $(#[$meta])* #[repr(C)]
        $vis struct $name<$p> { $($(#[$fmeta])* $fvis $field: $ty),* }
        $crate::persist_struct!(@impl [$p] $name [<$p>] { $($field: $ty),* });
    };
    ($(#[$meta:meta])* $vis:vis struct $name:ident { $($(#[$fmeta:meta])* $fvis:vis $field:ident : $ty:ty),* $(,)? }) => {
        $(#[$meta])* #[repr(C)]
        $vis struct $name { $($(#[$fmeta])* $fvis $field: $ty),* }
        $crate::persist_struct!(@impl [] $name [] { $($field: $ty),* });
    };
    (@impl $p:tt $name:ident [$($args:tt)*] { $($field:ident : $ty:ty),* }) => {
        const _: () = {
            type Whole = $crate::persist_struct!(@whole $name $p);
            $( assert!(
                ::core::mem::offset_of!(Whole, $field)
                    .is_multiple_of($crate::typed::field_align(|whole: &Whole| &raw const whole.$field))
                    && $crate::typed::field_align(|whole: &Whole| &raw const whole.$field) <= ::core::mem::align_of::<Whole>(),
                "a stored struct's fields are aligned: no repr(packed)"
            ); )*
        };
        // SAFETY: `repr(C)`; every field is Persist (checked by `field`); no Drop and no Deref (checked by the two impls below).
        unsafe impl $($args)* $crate::typed::Persist for $name $($args)* {
            type At<'towa> = $crate::persist_struct!(@at $name $p);
            fn describe(layout: &mut $crate::typed::Layout) {
                $( $crate::persist_struct!(@brand $p $ty); )*
                // These are all its fields.
                let _ = |whole: Self| {
                    let Self { $($field: _),* } = whole;
                };
                layout.composite::<Self>(stringify!($name), |layout| {
                    let _ = &layout;
                    $( layout.field::<$ty>(stringify!($field), ::core::mem::offset_of!(Self, $field)); )*
                });
            }
        }
        impl $($args)* $crate::typed::MustNotImplDrop for $name $($args)* {}
        impl $($args)* $crate::typed::MustNotImplDeref for $name $($args)* {}
    };
    (@brand [$p:lifetime] $ty:ty) => { $crate::typed::branded::<$p, $ty>() };
    (@brand [] $ty:ty) => { $crate::typed::unbranded::<$ty>() };
    (@whole $name:ident [$p:lifetime]) => { $name<'static> };
    (@whole $name:ident []) => { $name };
    (@at $name:ident [$p:lifetime]) => { $name<'towa> };
    (@at $name:ident []) => { $name };
}
