//! Removal of addresses and names from texts.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};

use doorbell_machine::Root;
use serde_json::Value;

/// Keys whose values name a host, a boot or a user.
const NAMING_KEYS: [&str; 4] = ["host", "hostname", "boot", "user"];

/// Keys whose values are versions, which may have the form of an IPv4 address.
const VERSION_KEYS: [&str; 4] = ["firmware", "kernel", "doorbell", "schema"];

/// Words before a section of a standard, whose number may have the form of an IPv4 address.
const SECTION: &str = "IBTA Vol 1, ";

/// Names that identify nothing.
const COMMON: [&str; 5] = ["root", "localhost", "none", "unknown", "(none)"];

/// Replaces addresses and names by placeholders. The same text always has the same placeholder.
///
/// Addresses are found by their form: IP, Ethernet, GID and GUID. Names are found if this machine or a document states
/// them.
#[derive(Debug, Default)]
pub struct Scrubber {
    /// Names to remove, with the kind of each.
    names: BTreeMap<String, &'static str>,
    /// Placeholders by the removed text, in lower case.
    placeholders: BTreeMap<String, String>,
    /// Number of placeholders of each kind.
    counts: BTreeMap<&'static str, usize>,
}

impl Scrubber {
    /// Creates a scrubber for the names of this machine: host, user, and directories of the user.
    pub fn of_machine(root: &Root) -> Self {
        let mut scrubber = Self::default();
        if let Some(host) = root.text("proc/sys/kernel/hostname") {
            scrubber.host(&host);
        }
        for variable in ["USER", "LOGNAME", "SUDO_USER"] {
            scrubber.name("user", &std::env::var(variable).unwrap_or_default());
        }
        let home = std::env::var("HOME").unwrap_or_default();
        scrubber.name("user", home.rsplit('/').next().unwrap_or_default());
        scrubber.path(&home);
        if let Ok(here) = std::env::current_dir() {
            scrubber.path(&here.to_string_lossy());
        }
        scrubber
    }

    /// Adds the name of a host, in its long and its short form.
    pub fn host(&mut self, name: &str) {
        // An address needs no entry, and its first part is a number.
        if is_address(name) {
            return;
        }
        self.name("host", name);
        self.name("host", name.split('.').next().unwrap_or_default());
    }

    /// Adds a directory. The root directory names nothing.
    pub fn path(&mut self, path: &str) {
        if path.len() > 1 {
            self.name("path", path.trim_end_matches('/'));
        }
    }

    /// Adds a name of this kind. Short and common names are left out, since they identify nothing.
    fn name(&mut self, kind: &'static str, name: &str) {
        let name = name.trim().to_lowercase();
        if name.len() > 1 && !COMMON.contains(&name.as_str()) {
            self.names.entry(name).or_insert(kind);
        }
    }

    /// Adds the names that a document states under keys such as `host`.
    pub fn learn(&mut self, document: &Value) {
        match document {
            Value::Object(members) => {
                for (key, value) in members {
                    match value {
                        Value::String(text) if NAMING_KEYS.contains(&key.as_str()) => self.host(text),
                        value => self.learn(value),
                    }
                }
            }
            Value::Array(values) => values.iter().for_each(|value| self.learn(value)),
            _ => {}
        }
    }

    /// Returns a document without addresses and names. Its keys stay as they are, unless they are addresses or names.
    pub fn json(&mut self, document: &Value) -> Value {
        match document {
            Value::String(text) => Value::String(self.text(text)),
            Value::Array(values) => values.iter().map(|value| self.json(value)).collect(),
            Value::Object(members) => {
                let member = |(key, value): (&String, &Value)| {
                    let value = match value {
                        Value::String(text) if VERSION_KEYS.contains(&key.as_str()) => Value::String(self.names(text)),
                        value => self.json(value),
                    };
                    (self.text(key), value)
                };
                Value::Object(members.iter().map(member).collect())
            }
            other => other.clone(),
        }
    }

    /// Returns a text without addresses and names.
    pub fn text(&mut self, text: &str) -> String {
        // Names first: the address of a host could be a part of its name.
        let named = self.names(text);
        self.addresses(&named)
    }

    /// Replaces the names in a text. A name is a whole word, in upper or lower case.
    fn names(&mut self, text: &str) -> String {
        // A longer name may contain a shorter one, as a path contains the user's name.
        let mut names: Vec<_> = self.names.iter().map(|(name, kind)| (name.clone(), *kind)).collect();
        names.sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
        let mut text = text.to_owned();
        for (name, kind) in names {
            let mut from = 0;
            while let Some(at) = text[from..].to_ascii_lowercase().find(&name).map(|at| from + at) {
                let end = at + name.len();
                let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
                let is_word = !text[..at].ends_with(is_part) && !text[end..].starts_with(is_part);
                from = if is_word {
                    let placeholder = self.placeholder(kind, &name);
                    text.replace_range(at..end, &placeholder);
                    at + placeholder.len()
                } else {
                    end
                };
            }
        }
        text
    }

    /// Replaces the addresses in a text.
    fn addresses(&mut self, text: &str) -> String {
        let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | ':' | '%');
        let mut scrubbed = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(start) = rest.find(is_part) {
            let (before, behind) = rest.split_at(start);
            let end = behind.find(|c: char| !is_part(c)).unwrap_or(behind.len());
            let (word, behind) = behind.split_at(end);
            scrubbed.push_str(before);
            // Marks of a sentence may follow an address.
            let plain = word.trim_end_matches(['.', ':']);
            let marks = &word[plain.len()..];
            match address_of(plain) {
                Some(address) if !scrubbed.ends_with(SECTION) => {
                    let placeholder = self.placeholder("address", address);
                    scrubbed.push_str(&placeholder);
                    scrubbed.push_str(&plain[address.len()..]);
                }
                _ => scrubbed.push_str(plain),
            }
            scrubbed.push_str(marks);
            rest = behind;
        }
        scrubbed.push_str(rest);
        scrubbed
    }

    fn placeholder(&mut self, kind: &'static str, removed: &str) -> String {
        let key = removed.to_lowercase();
        if let Some(known) = self.placeholders.get(&key) {
            return known.clone();
        }
        let count = self.counts.entry(kind).or_default();
        *count += 1;
        let placeholder = format!("{kind}-{count}");
        self.placeholders.insert(key, placeholder.clone());
        placeholder
    }
}

/// Returns whether a word is an address: IP, also with a port or a scope, Ethernet, InfiniBand, GID or GUID.
pub fn is_address(word: &str) -> bool {
    address_of(word).is_some()
}

/// Returns the address at the start of a word. A port may follow an IPv4 address.
fn address_of(word: &str) -> Option<&str> {
    let bare = word.split('%').next().unwrap_or(word);
    let is_ip = |text: &str| match text.parse() {
        // `::` means any address. It also stands in names of Rust.
        Ok(IpAddr::V6(address)) => address != Ipv6Addr::UNSPECIFIED,
        Ok(IpAddr::V4(_)) => true,
        Err(_) => false,
    };
    if is_ip(bare) || is_groups(bare, 2, 6..=20) || is_groups(bare, 4, 4..=4) || is_guid(bare) {
        return Some(word);
    }
    let (address, port) = bare.rsplit_once(':')?;
    (is_ip(address) && port.parse::<u16>().is_ok()).then_some(address)
}

/// Returns whether a word consists of groups of `digits` hexadecimal digits with colons between them.
fn is_groups(word: &str, digits: usize, counts: std::ops::RangeInclusive<usize>) -> bool {
    let is_group = |group: &str| group.len() == digits && group.chars().all(|c| c.is_ascii_hexdigit());
    counts.contains(&word.split(':').count()) && word.split(':').all(is_group)
}

/// Returns whether a word is a number of 64 bits in hexadecimal form, as a GUID.
fn is_guid(word: &str) -> bool {
    word.strip_prefix("0x").is_some_and(|digits| digits.len() == 16 && digits.chars().all(|c| c.is_ascii_hexdigit()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn scrubber() -> Scrubber {
        let mut scrubber = Scrubber::default();
        scrubber.host("Node7.example.org");
        scrubber.name("user", "alice");
        scrubber.path("/home/alice/work");
        scrubber
    }

    #[test]
    fn addresses_of_each_form_are_replaced() {
        for address in [
            "192.0.2.7",
            "::ffff:192.0.2.7",
            "fe80::1%eth0",
            "2001:db8::42",
            "fe80:0000:0000:0000:0e42:a1ff:fe00:0001",
            "0c:42:a1:00:00:01",
            "0c42:a103:0000:0001",
            "0x0c42a10300000001",
        ] {
            let text = Scrubber::default().text(&format!("from {address}, then [{address}]. {address}: x"));
            assert_eq!(text, "from address-1, then [address-1]. address-1: x", "{address}");
        }
        assert_eq!(Scrubber::default().text("192.0.2.7:18515 and 192.0.2.7/24"), "address-1:18515 and address-1/24");
        assert_eq!(
            Scrubber::default().text("doorbell0@127.0.0.2 and 127.0.0.3."),
            "doorbell0@address-1 and address-2."
        );
    }

    #[test]
    fn sections_of_standards_stay() {
        let text = "IBTA Vol 1, 9.9.2.4 and IBTA Vol 1, 10.2.2.3: x";
        assert_eq!(Scrubber::default().text(text), text);
        assert_eq!(Scrubber::default().text("IBTA Vol 1, 10.2.2.3, 10.2.2.4"), "IBTA Vol 1, 10.2.2.3, address-1");
    }

    #[test]
    fn other_words_stay() {
        let text = "at 12:30:45, 16.35.2000 of std::fmt::Debug, 0x1f, mlx5_0/1, 4.2 us, 99 %, :: and 1:2. End: yes.";
        assert_eq!(scrubber().text(text), text);
    }

    #[test]
    fn names_are_whole_words_in_any_case() {
        let text = "NODE7 and node7.example.org: alice@node7 in /home/alice/work/x, not malice or node77";
        // The longest name is replaced first.
        let expected = "host-2 and host-1: user-1@host-2 in path-1/x, not malice or node77";
        assert_eq!(scrubber().text(text), expected);
    }

    #[test]
    fn a_document_teaches_names_and_keeps_versions() {
        let mut scrubber = Scrubber::default();
        let document = json!({
            "environment": { "host": "storage-3", "firmware": "220.0.59.0", "cpus": 4, "user": "root" },
            "192.0.2.1": ["Storage-3 answers", null, true],
        });
        scrubber.learn(&document);
        let expected = json!({
            "environment": { "host": "host-1", "firmware": "220.0.59.0", "cpus": 4, "user": "root" },
            "address-1": ["host-1 answers", null, true],
        });
        assert_eq!(scrubber.json(&document), expected);
    }
}
