//! A class record's payload: what the class' instances look like in the file; and a root's.
//!
//! ```text
//!   class:  index | form | bytes of an instance | fields | name | field: offset | type | class | name | descriptor ... | origin, # and hash, if any
//!   root:   value (8 bytes) | class | field | descriptor          str: bytes (4), UTF-8, zeros up to a multiple of 4
//! ```
//!
//! What must always hold: a class that comes out of here has its fields in bounds, aligned and apart.

use std::collections::HashSet;

use crate::source::{u32_of, u64_of};

/// Bytes of a replica's header.
pub(crate) const HEADER: u64 = 24;
/// Longest string: names in Java's class files are no longer.
const STR_MAX: usize = 65535;

/// Why a payload cannot be.
type Reason = String;

/// What a replica of a class is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Object,
    /// Of elements of so many bytes; `true`: references.
    Array(u64, bool),
    EnumConstant,
    ClassConstant,
    NamedConstant,
}

impl Form {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Form::Object => "object",
            Form::Array(..) => "array",
            Form::EnumConstant => "enum constant",
            Form::ClassConstant => "class constant",
            Form::NamedConstant => "named constant",
        }
    }
}

/// A class.
#[derive(Debug)]
pub(crate) struct Class {
    pub(crate) index: u32,
    pub(crate) form: Form,
    /// Bytes of a replica, its header included, where all have as many.
    pub(crate) instance: u64,
    pub(crate) name: Box<str>,
    /// Offset and name of each field that is a reference.
    pub(crate) references: Vec<(u32, Box<str>)>,
}

/// A root.
#[derive(Debug)]
pub(crate) struct Root {
    /// Where its value is.
    pub(crate) at: u64,
    pub(crate) value: u64,
    /// Class and field.
    pub(crate) name: String,
    pub(crate) descriptor: Box<str>,
}

/// A payload, read from its beginning on.
struct Payload<'a>(&'a [u8]);

impl<'a> Payload<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], Reason> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or("it ends before its last field does")?;
        self.0 = rest;
        Ok(taken)
    }

    fn u32(&mut self) -> Result<u32, Reason> {
        self.take(4).map(|bytes| u32_of(bytes, 0))
    }

    fn str(&mut self) -> Result<&'a str, Reason> {
        let len = self.u32()? as usize;
        if len > STR_MAX {
            return Err(format!("a string of {len} bytes, longer than any name"));
        }
        let text = &self.take(len.next_multiple_of(4))?[..len];
        std::str::from_utf8(text).map_err(|_| "a string that is not UTF-8".into())
    }

    /// Nothing but padding may be left.
    fn end(self) -> Result<(), Reason> {
        if self.0.len() >= 16 || self.0.iter().any(|byte| *byte != 0) {
            return Err(format!("{} bytes behind its last field", self.0.len()));
        }
        Ok(())
    }
}

/// Bytes of a value of this type, and whether it is a reference.
fn width(kind: u32) -> Option<(u64, bool)> {
    Some(match u8::try_from(kind).ok()? {
        b'B' | b'Z' => (1, false),
        b'C' | b'S' => (2, false),
        b'I' | b'F' => (4, false),
        b'J' | b'D' => (8, false),
        b'L' | b'[' => (8, true),
        _ => return None,
    })
}

/// Whether `text` is the descriptor of a type that a field can have.
fn is_descriptor(text: &str) -> bool {
    let element = text.trim_start_matches('[');
    match element.strip_prefix('L') {
        Some(name) => name.len() > 1 && name.find(';') == Some(name.len() - 1),
        None => element.len() == 1 && width(u32::from(element.as_bytes()[0])).is_some(),
    }
}

/// A descriptor as one writes the type in Java: `[Ljava/lang/String;` is `java.lang.String[]`.
pub(crate) fn in_java(descriptor: &str) -> String {
    let element = descriptor.trim_start_matches('[');
    let name = match element {
        "Z" => "boolean",
        "B" => "byte",
        "C" => "char",
        "S" => "short",
        "I" => "int",
        "F" => "float",
        "J" => "long",
        "D" => "double",
        other => other.strip_prefix('L').unwrap_or(other).trim_end_matches(';'),
    };
    name.replace('/', ".") + &"[]".repeat((descriptor.len() - element.len()).min(255))
}

/// Reads a class' payload.
pub(crate) fn class(bytes: &[u8]) -> Result<Class, Reason> {
    let mut payload = Payload(bytes);
    let (index, form, instance, count) = (payload.u32()?, payload.u32()?, u64::from(payload.u32()?), payload.u32()?);
    let name = payload.str()?;
    if index == 0 {
        return Err("class 0 does not exist".into());
    }
    if name.is_empty() {
        return Err(format!("class {index} has no name"));
    }
    let form = match form {
        0 => Form::Object,
        1 => {
            let element = name.strip_prefix('[').filter(|element| is_descriptor(element));
            let kind =
                element.ok_or_else(|| format!("{name} is said to be an array, whose name would be [ and its elements' type"))?;
            let (bytes, is_reference) = width(u32::from(kind.as_bytes()[0])).expect("a descriptor opens with a type");
            Form::Array(bytes, is_reference)
        }
        2 => Form::EnumConstant,
        3 => Form::ClassConstant,
        4 => Form::NamedConstant,
        other => return Err(format!("{name} has form {other}, which does not exist")),
    };
    if form != Form::Object && count != 0 {
        return Err(format!("{name} has fields, and its form is {}", form.name()));
    }
    if form == Form::Object && instance < HEADER {
        return Err(format!("instances of {name} have {instance} bytes, less than a header"));
    }
    let references = fields(&mut payload, count, name, instance)?;
    origin(&mut payload, name)?;
    payload.end()?;
    Ok(Class { index, form, instance, name: name.into(), references })
}

/// Reads and checks what a class record ends with.
///
/// First the origin of a class that the compiler has numbered: a digest of its code in hexadecimal, or `- ` and the method that a local class is declared in.
/// Then, behind a `#`, the digest of the `hashCode` of a class that has its own.
fn origin(payload: &mut Payload, class: &str) -> Result<(), Reason> {
    if payload.0.len() < 4 || u32_of(payload.0, 0) == 0 {
        return Ok(());
    }
    let text = payload.str()?;
    let (origin, hash) = text.rsplit_once('#').map_or((text, None), |(origin, hash)| (origin, Some(hash)));
    let is_digest = |text: &str| text.len() <= 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_one = is_digest(origin) || origin.strip_prefix("- ").is_some_and(|method| !method.is_empty());
    let is_hash = hash.is_none_or(|hash| !hash.is_empty() && is_digest(hash));
    if is_one && is_hash { Ok(()) } else { Err(format!("{class} has the origin {text:?}, which is none")) }
}

/// Reads and checks fields; gives those that are references.
fn fields(payload: &mut Payload, count: u32, class: &str, instance: u64) -> Result<Vec<(u32, Box<str>)>, Reason> {
    let (mut references, mut places, mut names) = (Vec::new(), Vec::new(), HashSet::new());
    for _ in 0..count {
        let (offset, kind) = (payload.u32()?, payload.u32()?);
        let (declaring, name, descriptor) = (payload.str()?, payload.str()?, payload.str()?);
        let wrong = |what: String| Err(format!("field {declaring}.{name} of {class} {what}"));
        let Some((width, is_reference)) = width(kind) else {
            return wrong(format!("has type {kind:#x}, which does not exist"));
        };
        if name.is_empty() || declaring.is_empty() {
            return wrong("lacks its name or its class".into());
        }
        let is_same = descriptor.starts_with(['L', '[']) == is_reference
            && (is_reference || descriptor.as_bytes().first().map(|c| u32::from(*c)) == Some(kind));
        if !is_descriptor(descriptor) || !is_same {
            return wrong(format!("has the descriptor {descriptor}, which does not go with its type"));
        }
        let (from, to) = (u64::from(offset), u64::from(offset) + width);
        if from < HEADER || to > instance {
            return wrong(format!("lies at {from}, outside an instance's data (from {HEADER} up to {instance})"));
        }
        if !from.is_multiple_of(width) {
            return wrong(format!("of {width} bytes lies at {from}, which is not aligned"));
        }
        if !names.insert((declaring, name)) {
            return wrong("is there twice".into());
        }
        places.push((from, to));
        if is_reference {
            references.push((offset, format!("{declaring}.{name}").into()));
        }
    }
    places.sort_unstable();
    if let Some(pair) = places.windows(2).find(|pair| pair[0].1 > pair[1].0) {
        return Err(format!("fields of {class} overlap, at {} and {}", pair[0].0, pair[1].0));
    }
    references.sort_by_key(|(offset, _)| *offset);
    Ok(references)
}

/// Reads a root's payload, which lies at `at`.
pub(crate) fn root(bytes: &[u8], at: u64) -> Result<Root, Reason> {
    let mut payload = Payload(bytes);
    let value = u64_of(payload.take(8)?, 0);
    let (class, field, descriptor) = (payload.str()?, payload.str()?, payload.str()?);
    payload.end()?;
    if class.is_empty() || field.is_empty() {
        return Err("a root without its class or field".into());
    }
    if !is_descriptor(descriptor) || !descriptor.starts_with(['L', '[']) {
        return Err(format!("root {class}.{field} has the descriptor {descriptor}, which is none of a reference"));
    }
    Ok(Root { at, value, name: format!("{class}.{field}"), descriptor: descriptor.into() })
}

/// Why the text of a constant cannot be one.
pub(crate) fn check_constant(form: Form, text: &[u8]) -> Result<(), Reason> {
    let text = std::str::from_utf8(text).map_err(|_| "is not UTF-8".to_owned())?;
    let is_one = match form {
        Form::ClassConstant => text == "V" || is_descriptor(text),
        // A static field, what a factory of the JDK needs (which may be nothing: a path has no name), or the object as Java serialises it.
        Form::NamedConstant => {
            text.find(['#', '=', '<']).is_some_and(|at| at > 0 && (at + 1 < text.len() || text.as_bytes()[at] == b'='))
        }
        _ => !text.is_empty(),
    };
    if is_one { Ok(()) } else { Err(format!("is {text:?}, which is none")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_told_from_other_text() {
        for good in ["I", "Z", "[J", "[[D", "Ljava/lang/String;", "[Ljava/util/Map$Entry;"] {
            assert!(is_descriptor(good), "{good}");
        }
        for bad in ["", "[", "V", "X", "II", "L;", "Ljava/lang/String", "La;b;", "java.lang.String", "Lx;y"] {
            assert!(!is_descriptor(bad), "{bad}");
        }
        assert_eq!(in_java("[[Ljava/util/Map;"), "java.util.Map[][]");
        assert_eq!(in_java("[I"), "int[]");
    }

    #[test]
    fn origins_are_told_from_other_text() {
        let read = |text: &str| {
            let mut bytes = (text.len() as u32).to_le_bytes().to_vec();
            bytes.extend(text.as_bytes());
            bytes.resize(bytes.len().next_multiple_of(4), 0);
            let mut payload = Payload(&bytes);
            origin(&mut payload, "Shop$1").and_then(|()| payload.end())
        };
        for good in
            ["", "9f00c3d", "ffffffffffffffff", "- make()Ljava/lang/Object;", "#0", "9f00c3d#ffffffffffffffff", "- make()V#1"]
        {
            read(good).unwrap_or_else(|e| panic!("{good}: {e}"));
        }
        for bad in ["g", "1ffffffffffffffff", "1 2", "- ", " 1 make()V", "+1", "#", "1#", "1#g", "1#1ffffffffffffffff", "g#1"] {
            assert!(read(bad).unwrap_err().contains("Shop$1 has the origin"), "{bad}");
        }
    }

    #[test]
    fn constants_are_what_their_form_says() {
        use Form::*;
        for (form, text) in [(EnumConstant, "SECONDS"), (ClassConstant, "V"), (ClassConstant, "[I")] {
            check_constant(form, text.as_bytes()).unwrap();
        }
        for (form, text) in
            [(NamedConstant, "a.B#c"), (NamedConstant, "a.B=1#2"), (NamedConstant, "a.B="), (NamedConstant, "a.B<rO0=")]
        {
            check_constant(form, text.as_bytes()).unwrap();
        }
        for (form, text) in [
            (EnumConstant, ""),
            (ClassConstant, "int"),
            (NamedConstant, "a.B"),
            (NamedConstant, "#c"),
            (NamedConstant, "=c"),
            (NamedConstant, "a.B<"),
        ] {
            check_constant(form, text.as_bytes()).unwrap_err();
        }
        check_constant(EnumConstant, b"\xff").unwrap_err();
    }
}
