//! The typed face: what it keeps across reopening, what it refuses, and what a failed or panicking closure leaves behind.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use towa_epoch::typed::{PBox, describe, type_tag};
use towa_epoch::{Error, Options, Pool, field, fields, persist_struct};

persist_struct! {
    struct Stack<'p> { count: u64, head: Option<PBox<'p, Node<'p>>> }
}
persist_struct! {
    struct Node<'p> { values: [u32; 4], pair: (u8, u64), next: Option<PBox<'p, Node<'p>>> }
}

fn open(dir: &Path) -> Pool {
    let options = Options { heap_len: 16 << 20, manual: true, detect_forgotten_marks: true, ..Options::default() };
    Pool::open_or_create(&dir.join("pool"), &options).expect("open")
}

fn dir() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").expect("a directory in /dev/shm")
}

type StackRoot = towa_epoch::typed::Root<Stack<'static>>;

fn stack(pool: &Pool) -> StackRoot {
    let mut thread = pool.register().expect("register");
    pool.typed_root("stack", &mut thread, |_| Ok(Stack { count: 0, head: None })).expect("root")
}

fn push(stack: &StackRoot, n: u32) -> Result<(), Error> {
    stack.try_write(&mut stack.pool().register()?, |tx, root| {
        let (mut count, head) = fields!(root, count, head);
        *count.as_mut() += 1;
        let head = head.into_mut();
        let next = head.take();
        *head = Some(tx.boxed(Node { values: [n; 4], pair: (n as u8, n.into()), next })?);
        if n == 1313 { Err(Error::Usage("unlucky".into())) } else { Ok(()) }
    })
}

fn values(stack: &StackRoot) -> Vec<u32> {
    let values = stack.read(|stack| {
        let mut values = Vec::new();
        let mut at = &stack.head;
        while let Some(node) = at {
            assert_eq!(node.pair, (node.values[0] as u8, node.values[0].into()));
            values.push(node.values[3]);
            at = &node.next;
        }
        assert_eq!(stack.count, values.len() as u64);
        values
    });
    values.expect("read")
}

#[test]
fn structures_survive_and_every_write_was_marked() {
    let dir = dir();
    for round in 0..3 {
        let pool = open(dir.path());
        let stack = stack(&pool);
        assert_eq!(values(&stack), (0..round * 5).rev().collect::<Vec<_>>());
        for n in round * 5..(round + 1) * 5 {
            push(&stack, n).expect("push");
        }
        pool.checkpoint().expect("checkpoint");
        // Deep inside, through projections that mark nothing by themselves.
        let mut thread = pool.register().expect("register");
        let marked = stack.write(&mut thread, |_, mut root| {
            let mut node = field!(root.reborrow(), head).follow().expect("a node");
            field!(node.reborrow(), values).index(1).set(100);
            field!(node.reborrow(), pair.1).set(200);
            for mut value in field!(node.reborrow(), values).elements() {
                *value.as_mut() += 1;
            }
            field!(node, values).replace([(round + 1) * 5 - 1; 4])
        });
        assert_eq!(marked.expect("write")[1], 101);
        let restore = stack.write(&mut thread, |_, root| {
            field!(field!(root, head).follow().expect("a node"), pair.1).set(((round + 1) * 5 - 1).into());
        });
        restore.expect("write");
        pool.checkpoint().expect("checkpoint");
        assert!(pool.take_forgotten_marks().is_empty());
    }
}

#[test]
fn boxes_are_freed_and_reused() {
    let pool = Pool::volatile(&Options { heap_len: 8 << 20, ..Options::default() }).expect("open");
    let stack = stack(&pool);
    let mut thread = pool.register().expect("register");
    // More than fits: 64 bytes each,, if nothing were freed.
    for n in 0..150_000 {
        push(&stack, n % 7).expect("push");
        let popped = stack.write(&mut thread, |tx, root| {
            let (mut count, head) = fields!(root, count, head);
            *count.as_mut() -= 1;
            let head = head.into_mut();
            let node = tx.unbox(head.take().expect("a node"));
            *head = node.next;
            node.values[0]
        });
        assert_eq!(popped.expect("write"), n % 7);
    }
}

#[test]
fn a_failed_or_panicking_closure_is_undone() {
    let dir = dir();
    undoes(&open(dir.path()));
    undoes(&Pool::volatile(&Options { heap_len: 8 << 20, ..Options::default() }).expect("open"));
}

fn undoes(pool: &Pool) {
    let stack = stack(pool);
    push(&stack, 1).expect("push");
    let error = push(&stack, 1313).expect_err("unlucky");
    assert_eq!(error.to_string(), "unlucky");
    assert_eq!(values(&stack), [1]);
    let mut thread = pool.register().expect("register");
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        stack.try_write(&mut thread, |_, mut root| -> Result<(), Error> {
            root.as_mut().count = 77;
            panic!("on purpose");
        })
    }));
    assert!(panicked.is_err());
    assert_eq!(values(&stack), [1]);
    push(&stack, 2).expect("the pool is good");
    assert_eq!(values(&stack), [2, 1]);
}

#[test]
fn a_panic_that_cannot_be_undone_poisons() {
    let dir = dir();
    {
        let pool = open(dir.path());
        let stack = stack(&pool);
        push(&stack, 1).expect("push");
        pool.checkpoint().expect("checkpoint");
        let mut thread = pool.register().expect("register");
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            stack.write(&mut thread, |_, mut root| {
                root.as_mut().count = 77;
                panic!("on purpose");
            })
        }));
        assert!(panicked.is_err());
        assert!(matches!(stack.read(|s| s.count), Err(Error::Poisoned { .. })));
        assert!(matches!(stack.write(&mut thread, |_, _| ()), Err(Error::Poisoned { .. })));
    }
    assert_eq!(values(&stack(&open(dir.path()))), [1]);
}

#[test]
fn another_type_is_refused() {
    let pool = Pool::volatile(&Options { heap_len: 16 << 20, ..Options::default() }).expect("open");
    let mut thread = pool.register().expect("register");
    let _numbers = pool.typed_root::<[u64; 2]>("numbers", &mut thread, |_| Ok([1, 2])).expect("root");
    let error = pool.typed_root::<[u32; 4]>("numbers", &mut thread, |_| Ok([0; 4])).expect_err("another type");
    assert!(error.to_string().contains("\"numbers\"") && error.to_string().contains("[u32; 4]"), "{error}");
    drop(_numbers);
    pool.typed_root::<u128>("numbers", &mut thread, |_| Ok(0)).expect_err("nor when it is not open");
}

/// The tag sees through boxes: a `Node` whose fields change makes another `Stack`.
#[test]
fn tags_cover_everything_reachable() {
    mod other {
        use towa_epoch::{persist_struct, typed::PBox};
        persist_struct! {
            pub struct Stack<'p> { count: u64, head: Option<PBox<'p, Node<'p>>> }
        }
        persist_struct! {
            pub struct Node<'p> { values: [u32; 4], pair: (u64, u8), next: Option<PBox<'p, Node<'p>>> }
        }
    }
    assert_ne!(type_tag::<Stack>(), type_tag::<other::Stack>());
    assert_eq!(type_tag::<Stack>(), type_tag::<Stack<'static>>());
    assert_eq!(
        describe::<Stack>(),
        "Stack:16/8{count@0=u64:8/8,head@8=option:8/8*Node:40/8{values@0=[4]:16/4{0@0=u32:4/4,},\
         pair@16=tuple:16/8{0@0=u8:1/1,1@8=u64:8/8,},next@32=option:8/8*Node#1,},}"
    );
}

#[test]
fn handles_of_one_name_share_the_lock_and_nesting_is_refused() {
    let pool = Pool::volatile(&Options { heap_len: 16 << 20, ..Options::default() }).expect("open");
    let (a, b) = (stack(&pool), stack(&pool));
    let mut thread = pool.register().expect("register");
    let mut second = pool.register().expect("register");
    let number = pool.typed_root::<u64>("number", &mut thread, |_| Ok(5)).expect("root");
    a.write(&mut thread, |_, _| {
        // With a lock of its own, `b` would be readable here; as it is, the thread would wait for itself.
        assert!(matches!(b.read(|s| s.count), Err(Error::Usage(_))));
        assert!(matches!(number.write(&mut second, |_, _| ()), Err(Error::Usage(_))));
        assert!(matches!(pool.typed_root::<u64>("new", &mut second, |_| Ok(0)), Err(Error::Usage(_))));
    })
    .expect("write");
    let sum = a.read(|a| b.read(|b| number.read(|n| a.count + b.count + n))).expect("reads nest").expect("read").expect("read");
    assert_eq!(sum, 5);
    assert!(matches!(a.read(|_| number.write(&mut thread, |_, _| ())), Ok(Err(Error::Usage(_)))));
    // Two threads, two handles: none of the increments is lost.
    std::thread::scope(|scope| {
        for root in [&a, &b] {
            scope.spawn(|| {
                let mut thread = pool.register().expect("register");
                for _ in 0..20_000 {
                    root.write(&mut thread, |_, mut root| root.as_mut().count += 1).expect("write");
                }
            });
        }
    });
    assert_eq!(a.read(|s| s.count).expect("read"), 40_000);
}

#[test]
fn boxes_move_between_roots_of_one_transaction() {
    let pool = Pool::volatile(&Options { heap_len: 16 << 20, ..Options::default() }).expect("open");
    let mut thread = pool.register().expect("register");
    let (from, to) = (stack(&pool), pool.typed_root::<Option<PBox<Node>>>("to", &mut thread, |_| Ok(None)).expect("root"));
    push(&from, 8).expect("push");
    let moved = from.write_both(&to, &mut thread, |_, mut from, mut to| {
        let from = from.as_mut();
        from.count -= 1;
        *to.as_mut() = from.head.take();
    });
    moved.expect("write");
    assert_eq!(values(&from), []);
    assert_eq!(to.read(|to| to.as_ref().map(|node| node.values[0])).expect("read"), Some(8));
    assert!(matches!(from.write_both(&from, &mut thread, |_, _, _| ()), Err(Error::Usage(_))));
    let other = Pool::volatile(&Options { heap_len: 16 << 20, ..Options::default() }).expect("open");
    let mut stranger = other.register().expect("register");
    assert!(matches!(from.write(&mut stranger, |_, _| ()), Err(Error::Usage(_))));
    assert!(matches!(from.write_both(&stack(&other), &mut thread, |_, _, _| ()), Err(Error::Usage(_))));
}

/// Two types of one path and size, in two blocks of a function: a root of (A, A) opened as one of (A, B), and a
/// number was read as a box.
#[test]
fn types_of_one_name_are_not_confused() {
    persist_struct! { struct Cell<'p> { v: PBox<'p, u64> } }
    type A<'p> = Cell<'p>;
    fn cell(v: PBox<'_, u64>) -> A<'_> {
        Cell { v }
    }
    let both = {
        persist_struct! { struct Cell<'p> { v: PBox<'p, PBox<'p, u64>> } }
        describe::<(A<'static>, Cell<'static>)>()
    };
    assert_ne!(describe::<(A<'static>, A<'static>)>(), both);
    // Where a type is met again it is named by its number, however deep: so this ends.
    assert_eq!(describe::<(A<'static>, A<'static>)>().matches("Cell#").count(), 1);
    assert_eq!(describe::<Stack<'static>>().matches("Node#").count(), 1);
    let dir = dir();
    let pool = open(dir.path());
    let mut thread = pool.register().expect("register");
    pool.typed_root::<(A<'static>, A<'static>)>("r", &mut thread, |tx| Ok((cell(tx.boxed(1)?), cell(tx.boxed(2)?)))).expect("root");
    {
        persist_struct! { struct Cell<'p> { v: PBox<'p, PBox<'p, u64>> } }
        let other = pool.typed_root::<(A<'static>, Cell<'static>)>("r", &mut thread, |_| unreachable!());
        assert!(matches!(other, Err(Error::Usage(_))), "opened as another type");
    }
}
