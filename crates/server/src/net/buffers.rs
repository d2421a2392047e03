//! The buffers that pass from one connection of a worker to the next, and the output that does not.
//!
//! What must always hold: no byte of one connection reaches another. The types hold it, not the order of calls:
//! - [`Output`] belongs to its connection from the first reply on and is freed with it, however the connection ends;
//! - [`Spare`] keeps allocations, never bytes: whatever is put in comes out empty;
//! - [`Scratch`] gives out exactly the bytes that were put there and read for one batch, never the rest of its memory.

use std::io::{self, ErrorKind, Read, Write};

use crate::receiving::READ;

/// Bytes that a worker reads at once; one buffer per worker, not per connection.
pub const SCRATCH: usize = READ;
/// A larger allocation is freed instead of kept for the next batch.
const SPARE_MAX: usize = 1 << 20;

/// Where a worker reads to.
pub struct Scratch(Box<[u8]>);

/// What one read brought.
pub struct Received<'a> {
    /// What had been left over, and the bytes read behind it.
    pub bytes: &'a [u8],
    /// How many of them were read now.
    pub read: usize,
    /// How many could have been.
    pub room: usize,
}

impl Default for Scratch {
    fn default() -> Self {
        Scratch(vec![0; SCRATCH].into())
    }
}

impl Scratch {
    /// Copies `left` here, which is shorter than [`SCRATCH`], and reads at most `most` bytes behind it, once.
    pub fn receive(&mut self, left: &[u8], most: usize, stream: &mut impl Read) -> io::Result<Received<'_>> {
        let (head, free) = self.0.split_at_mut(left.len());
        head.copy_from_slice(left);
        let room = most.min(free.len());
        let read = stream.read(&mut free[..room])?;
        Ok(Received { bytes: &self.0[..left.len() + read], read, room })
    }
}

/// An allocation for the output of whichever connection is served next. Always empty.
#[derive(Default)]
pub struct Spare(Vec<u8>);

impl Spare {
    fn take(&mut self) -> Vec<u8> {
        match self.0.capacity() {
            0 => Vec::with_capacity(SCRATCH),
            _ => std::mem::take(&mut self.0),
        }
    }

    fn put(&mut self, mut bytes: Vec<u8>) {
        bytes.clear();
        if bytes.capacity() > self.0.capacity() && bytes.capacity() <= SPARE_MAX {
            self.0 = bytes;
        }
    }
}

/// Replies of one connection that its socket has not taken. Holds no memory while there are none.
#[derive(Debug, Default)]
pub struct Output {
    bytes: Vec<u8>,
    sent: usize,
}

impl Output {
    /// Whether the socket took everything.
    pub fn is_empty(&self) -> bool {
        self.sent == self.bytes.len()
    }

    /// Bytes of memory that it has.
    pub fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// Where replies are appended.
    pub fn replies(&mut self, spare: &mut Spare) -> &mut Vec<u8> {
        if self.bytes.capacity() == 0 {
            self.bytes = spare.take();
        }
        &mut self.bytes
    }

    /// Writes until all is sent or `stream` takes no more; adds the bytes it took to `sent`. After an error the connection ends.
    pub fn send(&mut self, stream: &mut impl Write, sent: &mut u64) -> io::Result<()> {
        while !self.is_empty() {
            match stream.write(&self.bytes[self.sent..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => {
                    self.sent += count;
                    *sent += count as u64;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Gives back the memory that the rest does not need. After a batch, so that a connection without output has no buffer.
    pub fn settle(&mut self, spare: &mut Spare) {
        if self.bytes.capacity() == 0 {
            return;
        }
        let rest = self.bytes.len() - self.sent;
        // A buffer that has doubled may be half empty from the start.
        let is_roomy = rest <= self.bytes.capacity() / 4 * 3;
        if self.bytes.capacity() > SPARE_MAX && is_roomy {
            // In place: not for a moment more memory than there was.
            self.bytes.drain(..self.sent);
            self.bytes.shrink_to_fit();
            self.sent = 0;
        } else if is_roomy {
            let rest = self.bytes[self.sent..].to_vec();
            spare.put(std::mem::replace(&mut self.bytes, rest));
            self.sent = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes `room` bytes, then no more.
    struct Narrow {
        room: usize,
        taken: Vec<u8>,
    }

    impl Write for Narrow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let count = bytes.len().min(self.room);
            self.room -= count;
            self.taken.extend_from_slice(&bytes[..count]);
            if count == 0 { Err(ErrorKind::WouldBlock.into()) } else { Ok(count) }
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_is_passed_on_is_empty() {
        let mut spare = Spare::default();
        spare.put(b"of another connection".to_vec());
        assert!(spare.take().is_empty());
        let mut output = Output::default();
        output.replies(&mut spare).extend_from_slice(b"never sent");
        spare.put(output.bytes);
        assert!(Output::default().replies(&mut spare).is_empty());
    }

    #[test]
    fn output_holds_what_is_not_sent_and_little_more() {
        let (mut spare, mut output, mut sent) = (Spare::default(), Output::default(), 0);
        let mut narrow = Narrow { room: 99_000, taken: Vec::new() };
        let replies: Vec<u8> = (0..100_000u32).map(|i| i as u8).collect();
        output.replies(&mut spare).extend_from_slice(&replies);
        output.send(&mut narrow, &mut sent).unwrap();
        output.settle(&mut spare);
        assert!(!output.is_empty() && sent == 99_000 && output.bytes.capacity() <= 2000, "{}", output.bytes.capacity());
        assert!(spare.0.capacity() >= 100_000);
        narrow.room = 5000;
        output.send(&mut narrow, &mut sent).unwrap();
        output.settle(&mut spare);
        assert!(output.is_empty() && sent == 100_000 && output.bytes.capacity() == 0 && narrow.taken == replies);
    }

    #[test]
    fn scratch_gives_out_what_was_received() {
        let mut scratch = Scratch::default();
        let mut long: &[u8] = b"a secret of another connection";
        assert_eq!(scratch.receive(b"", SCRATCH, &mut long).unwrap().bytes, b"a secret of another connection");
        let mut short: &[u8] = b"get";
        let received = scratch.receive(b"x ", SCRATCH, &mut short).unwrap();
        assert_eq!((received.bytes, received.read, received.room), (&b"x get"[..], 3, SCRATCH - 2));
    }
}
