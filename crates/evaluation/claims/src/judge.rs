//! The judge: one rule for each published sentence.

mod asked;
mod direct_read;
mod far_memory;
mod line;
mod operations;
mod send_receive;
mod shared;
#[cfg(test)]
mod tests;

use crate::{Gap, Shape, Source, Verdict};
use asked::{Asked, MANY, SIZES, Said, THREADS, of_all};

/// Rule of a sentence: whether the values of a source have the shape, and a sentence with the numbers.
type Rule = fn(&mut Asked<'_>) -> Said;

/// Rules by the id of their sentence.
type Rules = &'static [(&'static str, Rule)];

const FAMILIES: [Rules; 5] =
    [send_receive::RULES, shared::RULES, direct_read::RULES, operations::RULES, far_memory::RULES];

/// Judges a sentence by the values of a source.
pub fn judge(shape: &Shape, source: &mut dyn Source) -> Verdict {
    judge_by(&FAMILIES, shape, source)
}

fn judge_by(families: &[Rules], shape: &Shape, source: &mut dyn Source) -> Verdict {
    let judged = match families.iter().copied().flatten().find(|(of, _)| *of == shape.id) {
        Some((_, rule)) => rule(&mut Asked::new(shape, source)),
        None => Err(Gap::NoValues("no rule of this sentence exists".to_owned())),
    };
    judged.map_or_else(Verdict::from, |(holds, because)| Verdict::new(holds, because))
}
