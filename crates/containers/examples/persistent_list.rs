//! The persistent list of the paper's Fig. 1 in safe Rust: there is no `mark` to forget.
//!
//!     persistent_list POOL insert KEY VALUE     in the order of keys; durable when the command returns
//!     persistent_list POOL remove KEY
//!     persistent_list POOL dump                 prints KEY VALUE, a line each
//!
//! Where the paper's program says `mark(&node->next, 8)` before it stores, here the walk hands a `PMut` from node to node, which
//! marks nothing, and `into_mut` at its end marks the eight bytes it gives. Every node is owned by the link that leads to it: a
//! second pointer to the last node, as in the figure, would need `unsafe`, so this list is kept in order instead.

use std::error::Error;
use towa_epoch::typed::{PBox, PMut, Root, Txn};
use towa_epoch::{Options, Pool, Thread, field, persist_struct};

persist_struct! {
    struct List<'p> { head: Link<'p> }
}
persist_struct! {
    struct Node<'p> { key: u64, value: u64, next: Link<'p> }
}
type Link<'p> = Option<PBox<'p, Node<'p>>>;

/// The link that leads to the first node whose key is not below `key`.
fn seek<'t, 'p>(mut link: PMut<'t, Link<'p>>, key: u64) -> PMut<'t, Link<'p>> {
    while link.get().as_ref().is_some_and(|node| node.key < key) {
        link = field!(link.follow().expect("there is a node"), next);
    }
    link
}

fn insert<'p>(tx: Txn<'p>, list: PMut<'p, List<'p>>, key: u64, value: u64) -> towa_epoch::Result<()> {
    let link = seek(field!(list, head), key);
    if link.get().as_ref().is_some_and(|node| node.key == key) {
        field!(link.follow().expect("there is a node"), value).set(value);
        return Ok(());
    }
    let link = link.into_mut(); // marks this link, and nothing else
    let next = link.take();
    *link = Some(tx.boxed(Node { key, value, next })?);
    Ok(())
}

fn remove<'p>(tx: Txn<'p>, list: PMut<'p, List<'p>>, key: u64) -> bool {
    let link = seek(field!(list, head), key);
    if link.get().as_ref().is_none_or(|node| node.key != key) {
        return false;
    }
    let link = link.into_mut();
    let node = link.take().expect("there is a node");
    *link = tx.unbox(node).next; // frees the node; its next is ours
    true
}

fn dump(list: &Root<List<'static>>) -> towa_epoch::Result<()> {
    list.read(|list| {
        let mut link = &list.head;
        while let Some(node) = link {
            println!("{} {}", node.key, node.value);
            link = &node.next;
        }
    })
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let [dir, command @ ..] = &words[..] else { return Err("usage: persistent_list POOL insert|remove|dump ...".into()) };
    let pool = Pool::open_or_create(dir.as_ref(), &Options { heap_len: 64 << 20, ..Options::default() })?;
    let mut thread: Thread = pool.register()?;
    let list = pool.typed_root::<List>("list", &mut thread, |_| Ok(List { head: None }))?;
    match command {
        ["insert", key, value] => {
            let (key, value) = (key.parse()?, value.parse()?);
            list.try_write(&mut thread, |tx, list| insert(tx, list, key, value))?;
        }
        ["remove", key] => {
            let key = key.parse()?;
            if !list.write(&mut thread, |tx, list| remove(tx, list, key))? {
                return Err(format!("no key {key}").into());
            }
        }
        ["dump"] => dump(&list)?,
        _ => return Err("commands: insert KEY VALUE, remove KEY, dump".into()),
    }
    pool.sync()?;
    Ok(())
}
