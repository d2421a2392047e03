//! The processor, before others: for the moments in which somebody stands still and waits for us.

/// The calling thread comes before all ordinary ones, where it may (CAP_SYS_NICE, RLIMIT_RTPRIO), until this is dropped.
#[derive(Debug)]
pub(crate) struct Urgent(Option<(i32, libc::sched_param)>);

impl Urgent {
    /// From now on.
    pub fn begin() -> Urgent {
        // SAFETY: numbers, and live structs; 0 means the calling thread.
        unsafe {
            let mut before: libc::sched_param = std::mem::zeroed();
            let policy = libc::sched_getscheduler(0);
            if policy < 0 || policy == libc::SCHED_FIFO || libc::sched_getparam(0, &raw mut before) != 0 {
                return Urgent(None);
            }
            let least = libc::sched_param { sched_priority: 1 };
            let urgent = libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const least) == 0;
            Urgent(urgent.then_some((policy, before)))
        }
    }
}

impl Drop for Urgent {
    fn drop(&mut self) {
        if let Some((policy, before)) = &self.0 {
            // SAFETY: numbers, and a live struct. Giving up what one has is always permitted.
            unsafe { libc::sched_setscheduler(0, *policy, std::ptr::from_ref(before)) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_as_before_afterwards() {
        // SAFETY: numbers only.
        let policy = || unsafe { libc::sched_getscheduler(0) };
        let before = policy();
        let urgent = Urgent::begin();
        if urgent.0.is_none() {
            eprintln!("SKIPPED: it may not come before others here");
        } else {
            assert_eq!(policy(), libc::SCHED_FIFO);
        }
        drop(urgent);
        assert_eq!(policy(), before);
    }
}
