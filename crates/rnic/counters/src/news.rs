//! Notes and remarks of readings that are new.

use std::collections::HashSet;

use crate::{Interval, Look};

/// Sentences that were shown. Each sentence is new only once, so that a broken device does not fill the screen.
#[derive(Debug, Default)]
pub struct News(HashSet<String>);

impl News {
    const MOST: usize = 1000;

    /// Returns whether the sentence is new.
    fn is_new(&mut self, sentence: &str) -> bool {
        self.0.len() < Self::MOST && self.0.insert(sentence.to_owned())
    }

    /// Returns the notes and remarks of a look that were not shown before.
    pub fn of(&mut self, look: &Look) -> Vec<String> {
        let remarks = look.devices.iter().flat_map(|device| {
            let label = &device.sample.identity.label;
            remarks(device).map(move |remark| format!("{label}: {remark}"))
        });
        look.notes.iter().cloned().chain(remarks).filter(|sentence| self.is_new(sentence)).collect()
    }
}

fn remarks(device: &Interval) -> impl Iterator<Item = &String> {
    device.rates.iter().flat_map(|rates| &rates.remarks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_is_new_once() {
        let mut said = News::default();
        let mut odd = Look::default();
        odd.notes.push("odd".to_owned());
        assert_eq!(said.of(&odd), ["odd"]);
        assert!(said.of(&odd).is_empty());
        for number in 0..10_000 {
            odd.notes = vec![number.to_string()];
            said.of(&odd);
        }
        assert_eq!(said.0.len(), News::MOST);
    }
}
