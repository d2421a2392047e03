//! A separate checkpointer comes to a pool that is open.

use std::sync::Arc;

use crate::ways::gate::Gated;
use towa_media::RamMedium;
use towa_tx::{Checkpointer, Error, Options, Pool, SeparateCheckpointer};

/// A sync of an earlier checkpointer failed. The kernel tells that to descriptors that are older, so to the owner's, and not
/// to those of a checkpointer that comes later: so the owner is asked first, and that one is not let in.
#[test]
fn a_checkpointer_is_let_in_when_the_owner_has_synced_its_files() {
    for name in ["image", "log"] {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let (medium, gate) = Gated::in_dir(dir.path());
        let options = Options { heap_len: 4 << 20, lanes: 2, checkpointer: Checkpointer::Process, ..Options::default() };
        let pool = Pool::create_on(Arc::new(medium), &options).unwrap();
        let beside = RamMedium::open(dir.path(), false, None).unwrap();
        drop(SeparateCheckpointer::attach(&*beside).unwrap());
        gate.fail(name);
        let refused = SeparateCheckpointer::attach(&*beside).map(drop);
        assert!(matches!(&refused, Err(Error::Usage(why)) if why.contains("failed")), "{name}: {refused:?}");
        let poisoned = pool.register().map(drop);
        assert!(matches!(&poisoned, Err(Error::Poisoned { why, .. }) if why.contains("the device failed")), "{name}: {poisoned:?}");
    }
}
