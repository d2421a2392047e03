//! What a process is made of, before it is touched and when it stands still: its mappings, and what of them stands in the way.

use crate::error::Refusal;
use crate::memory::maps::{Mapping, VmFlags};
use crate::nv::Nv;
use crate::pages::{PAGE, PageSet, Pages};
use crate::state::region::{Backing, Region};

/// What was found out before the process was touched.
pub(super) struct Survey {
    /// By address.
    pub(super) flags: Vec<(Pages, VmFlags)>,
    /// Whether another program tracks some of its memory.
    pub(super) tracked: bool,
}

impl Survey {
    /// The flags of the mapping that had this page.
    pub(super) fn flags_of(&self, page: u64) -> Option<&VmFlags> {
        let at = self.flags.partition_point(|(pages, _)| pages.end <= page);
        self.flags.get(at).filter(|(pages, _)| pages.contains(&page)).map(|(_, flags)| flags)
    }
}

/// All regions without the stub, which the kernel may have joined with its neighbours.
pub(super) fn regions(
    nv: Option<&Nv>,
    mappings: &[Mapping],
    survey: &Survey,
    stub: &std::ops::Range<u64>,
) -> std::result::Result<Vec<Region>, Vec<Refusal>> {
    let stub = PageSet::of(Some(stub.start / PAGE..stub.end / PAGE));
    let (mut regions, mut refused) = (Vec::new(), Vec::new());
    for mapping in mappings {
        for pages in PageSet::of([mapping.pages.clone()]).difference(&stub).ranges() {
            let part = Mapping { pages: pages.clone(), ..mapping.clone() };
            match region_of(nv, &part, survey.flags_of(pages.start)) {
                Some(Ok(region)) => regions.push(region),
                Some(Err(refusal)) => refused.push(refusal),
                None => {}
            }
        }
    }
    refused.extend(twice(&regions));
    if refused.is_empty() { Ok(regions) } else { Err(refused) }
}

/// Parts of shared memory without a name that are mapped more than once: each mapping would become an object of its own.
pub(super) fn twice(regions: &[Region]) -> Vec<Refusal> {
    let mut parts: Vec<(u64, std::ops::Range<u64>, u64)> = Vec::new();
    let mut refused = Vec::new();
    for region in regions {
        let Backing::SharedAnonymous { inode, offset } = region.backing else { continue };
        let part = offset..offset + region.len();
        let other = parts.iter().find(|(of, other, _)| *of == inode && other.start < part.end && part.start < other.end);
        if let Some((.., start)) = other {
            let what = format!("shared memory without a name that is also mapped at {start:x}");
            refused.push(Refusal { place: format!("memory at {:x}", region.start()), what });
        }
        parts.push((inode, part, region.start()));
    }
    refused
}

/// [`Region::of`], of a process that may have a pool.
pub(super) fn region_of(
    nv: Option<&Nv>,
    mapping: &Mapping,
    flags: Option<&VmFlags>,
) -> Option<std::result::Result<Region, Refusal>> {
    match nv {
        Some(nv) if nv.pool.has(mapping) => Some(Ok(Region::of_pool(mapping, flags))),
        _ => Region::of(mapping, flags),
    }
}

/// What stands in the way at many places is said once.
pub(super) fn once_each(refused: Vec<Refusal>) -> Vec<Refusal> {
    let mut once: Vec<(Refusal, usize)> = Vec::new();
    for refusal in refused {
        match once.iter_mut().find(|(other, _)| other.what == refusal.what) {
            Some((_, more)) => *more += 1,
            None => once.push((refusal, 0)),
        }
    }
    let told = |(refusal, more): (Refusal, usize)| match more {
        0 => refusal,
        more => Refusal { place: format!("{} and {more} other places", refusal.place), what: refusal.what },
    };
    once.into_iter().map(told).collect()
}
