//! Numbered places for a worker's connections.
//!
//! What must always hold: a [`Key`] finds what was put in under it, or nothing. A place is used again; its keys are not, so an
//! event, a turn or a wait that was meant for a connection that is gone never meets the one that came after it.

use mio::Token;

/// Names one thing that was put in: a place, and how often the place had been emptied before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    index: u32,
    generation: u32,
}

impl From<Key> for Token {
    fn from(key: Key) -> Token {
        Token(key.index as usize | (key.generation as usize) << 32)
    }
}

impl From<Token> for Key {
    fn from(token: Token) -> Key {
        Key { index: token.0 as u32, generation: (token.0 >> 32) as u32 }
    }
}

struct Place<T> {
    generation: u32,
    value: Option<T>,
}

/// The places.
pub struct Slots<T> {
    places: Vec<Place<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Slots { places: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slots<T> {
    /// Puts in what `make` returns for the key that it will have; nothing if that is an error.
    pub fn insert<E>(&mut self, make: impl FnOnce(Key) -> Result<T, E>) -> Result<Key, E> {
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place { generation: 0, value: None });
            // Connections are limited to far less; the last number belongs to the waker's token.
            u32::try_from(self.places.len() - 1).ok().filter(|index| *index < u32::MAX).expect("fewer than 2^32 connections")
        });
        let place = &mut self.places[index as usize];
        let key = Key { index, generation: place.generation };
        match make(key) {
            Ok(value) => place.value = Some(value),
            Err(error) => {
                self.free.push(index);
                return Err(error);
            }
        }
        Ok(key)
    }

    /// What was put in under `key`, if it is still there.
    #[inline]
    pub fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let place = self.places.get_mut(key.index as usize)?;
        if place.generation == key.generation { place.value.as_mut() } else { None }
    }

    /// Takes it out. No key leads to the place until something is put there again.
    pub fn remove(&mut self, key: Key) -> Option<T> {
        let place = self.places.get_mut(key.index as usize)?;
        if place.generation != key.generation {
            return None;
        }
        let value = place.value.take()?;
        place.generation = place.generation.wrapping_add(1);
        self.free.push(key.index);
        Some(value)
    }

    /// Everything that is there.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.places.iter().filter_map(|place| place.value.as_ref())
    }

    /// The key of the one with the greatest `measure`, if there are any.
    pub fn max_by_key<M: Ord>(&self, measure: impl Fn(&T) -> M) -> Option<Key> {
        let there = self.places.iter().zip(0..).filter_map(|(place, index)| {
            let key = Key { index, generation: place.generation };
            place.value.as_ref().map(|value| (measure(value), key))
        });
        there.max_by(|(one, _), (other, _)| one.cmp(other)).map(|(_, key)| key)
    }

    /// The keys of those for which `wanted` says so.
    pub fn keys(&self, wanted: impl Fn(&T) -> bool) -> Vec<Key> {
        let key = |(index, place): (usize, &Place<T>)| {
            place.value.as_ref().filter(|value| wanted(value)).map(|_| Key { index: index as u32, generation: place.generation })
        };
        self.places.iter().enumerate().filter_map(key).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(slots: &mut Slots<&'static str>, what: &'static str) -> Key {
        slots.insert(|_| Ok::<_, ()>(what)).unwrap()
    }

    #[test]
    fn the_key_of_one_that_is_gone_finds_nothing() {
        let mut slots = Slots::default();
        let (gone, other) = (put(&mut slots, "gone"), put(&mut slots, "other"));
        assert_eq!(slots.remove(gone), Some("gone"));
        assert_eq!((slots.get_mut(gone).copied(), slots.remove(gone)), (None, None));
        let next = put(&mut slots, "next");
        assert_eq!((next.index, slots.get_mut(gone).copied(), slots.remove(gone)), (gone.index, None, None));
        assert_eq!((slots.get_mut(next).copied(), slots.get_mut(other).copied()), (Some("next"), Some("other")));
        assert_eq!(slots.keys(|what| *what == "next"), [next]);
        assert_eq!(slots.insert(|_| Err::<&str, _>("no")), Err("no"));
        assert_eq!(slots.values().count(), 2);
    }

    #[test]
    fn a_token_is_its_key() {
        for key in [Key { index: 0, generation: 0 }, Key { index: 7, generation: u32::MAX }] {
            assert_eq!(Key::from(Token::from(key)), key);
            assert_ne!(Token::from(key), Token(usize::MAX));
        }
    }
}
