//! Reader of callgrind's output files.
//!
//! The format is documented in valgrind's manual, section "Callgrind Format Specification". Each line of costs belongs
//! to the compiled function and the source file that were named last. Code of another file that the compiler inlined
//! has the name of that file, and the name of the function into which it was inlined.

use std::collections::BTreeMap;

/// Place of code: the compiled function, and the source file of the instruction.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) function: String,
    pub(super) file: String,
}

/// Instructions of a run, by place and by call.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Costs {
    /// Instructions at each place, without those of called functions.
    pub(super) own: BTreeMap<Place, i64>,
    /// Instructions during the calls from a place to a function, including all calls further down.
    pub(super) calls: BTreeMap<(Place, String), i64>,
}

impl Costs {
    /// Reads the text of a file.
    ///
    /// # Errors
    ///
    /// The text is not callgrind's, or the costs of its lines differ from the sum that the text states.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        if !text.starts_with("# callgrind format") {
            return Err("the file does not begin with `# callgrind format`".to_owned());
        }
        let mut costs = Self::default();
        let mut names = [const { BTreeMap::<u64, String>::new() }; 2];
        let mut place = Place::default();
        let (mut called, mut is_call) = (String::new(), false);
        let mut stated = None;
        for (number, line) in text.lines().enumerate() {
            let fail = |why: &str| format!("line {}, `{line}`: {why}", number + 1);
            if line.starts_with(|first: char| first.is_ascii_digit() || "+-*".contains(first)) {
                let mut words = line.split(' ').skip(1);
                let cost = words.next().map_or(Ok(0), str::parse::<i64>).map_err(|_| fail("the cost is no number"))?;
                if std::mem::take(&mut is_call) {
                    *costs.calls.entry((place.clone(), called.clone())).or_default() += cost;
                } else {
                    *costs.own.entry(place.clone()).or_default() += cost;
                }
            } else if let Some((key, value)) = line.split_once('=') {
                let kind = match key {
                    "fn" | "cfn" => 0,
                    "fl" | "fi" | "fe" => 1,
                    "calls" => {
                        is_call = true;
                        continue;
                    }
                    // The file of a called function shares the numbers of files, and may define one.
                    "cfi" | "cfl" => {
                        name(&mut names[1], value).ok_or_else(|| fail("the number of the name is unknown"))?;
                        continue;
                    }
                    _ => continue,
                };
                let name = name(&mut names[kind], value).ok_or_else(|| fail("the number of the name is unknown"))?;
                match key {
                    // The number after an apostrophe counts levels of recursion.
                    "fn" => plain(&name).clone_into(&mut place.function),
                    "cfn" => plain(&name).clone_into(&mut called),
                    _ => place.file = name,
                }
            } else if let Some(sum) = line.strip_prefix("totals: ") {
                stated = Some(sum.trim().parse::<i64>().map_err(|_| fail("the sum is no number"))?);
            }
        }
        let stated = stated.ok_or("the file has no line `totals:`, so the run has not ended")?;
        let found = costs.own.values().sum::<i64>();
        if found == stated {
            Ok(costs)
        } else {
            Err(format!("the costs of the lines are {found}, the sum is {stated}"))
        }
    }

    /// Returns the costs without those of a shorter run.
    pub(super) fn without(mut self, short: &Self) -> Self {
        short.own.iter().for_each(|(place, cost)| *self.own.entry(place.clone()).or_default() -= cost);
        short.calls.iter().for_each(|(call, cost)| *self.calls.entry(call.clone()).or_default() -= cost);
        self
    }
}

/// Returns a name. Its first use in a file is `(7) name`, each later one only `(7)`.
fn name(names: &mut BTreeMap<u64, String>, text: &str) -> Option<String> {
    let Some((number, rest)) = text.strip_prefix('(').and_then(|text| text.split_once(')')) else {
        return Some(text.to_owned());
    };
    let number = number.parse().ok()?;
    match rest.strip_prefix(' ') {
        Some(name) => {
            names.insert(number, name.to_owned());
            Some(name.to_owned())
        }
        None => names.get(&number).cloned(),
    }
}

/// Returns the name of a function without the level of its recursion.
fn plain(function: &str) -> &str {
    match function.rsplit_once('\'') {
        Some((plain, level)) if !level.is_empty() && level.bytes().all(|byte| byte.is_ascii_digit()) => plain,
        _ => function,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A shortened file of a real run.
    pub(in super::super) const SAMPLE: &str = include_str!("sample.callgrind");

    pub(in super::super) fn place(function: &str, file: &str) -> Place {
        Place { function: function.to_owned(), file: file.to_owned() }
    }

    const WRITE_PACKET: &str = "doorbell_rnic::qp::requester::transmit::<impl doorbell_rnic::qp::Qp>::write_packet";
    const TRANSMIT: &str = "/src/doorbell/crates/rnic/rnic/src/qp/requester/transmit.rs";

    #[test]
    fn costs_belong_to_the_function_and_the_file_of_their_line() {
        let costs = Costs::parse(SAMPLE).unwrap();
        assert_eq!(costs.own[&place(WRITE_PACKET, TRANSMIT)], 40);
        assert_eq!(costs.own[&place(WRITE_PACKET, "/src/doorbell/crates/rnic/wire/src/bth.rs")], 7);
        assert_eq!(costs.own.values().sum::<i64>(), 189);
        assert_eq!(costs.calls[&(place(WRITE_PACKET, TRANSMIT), "__memcpy_avx_unaligned_erms".to_owned())], 30);
    }

    #[test]
    fn recursive_calls_belong_to_one_function() {
        let costs = Costs::parse(SAMPLE).unwrap();
        let insert = place("alloc::vec::Vec<T,A>::insert", "/rustc/0123/library/alloc/src/vec/mod.rs");
        assert_eq!(costs.own[&insert], 12);
    }

    #[test]
    fn the_difference_of_two_runs_has_the_costs_of_the_longer_one() {
        let long = Costs::parse(&SAMPLE.replace("11 40", "11 140").replace("totals: 189", "totals: 289")).unwrap();
        let rest = long.without(&Costs::parse(SAMPLE).unwrap());
        let different: Vec<_> = rest.own.iter().filter(|(_, cost)| **cost != 0).collect();
        assert_eq!(different, [(&place(WRITE_PACKET, TRANSMIT), &100)]);
        assert!(rest.calls.values().all(|&cost| cost == 0));
    }

    #[test]
    fn a_damaged_file_is_refused_with_the_reason() {
        let why = |text: &str| Costs::parse(text).unwrap_err();
        assert_eq!(why("events: Ir\n"), "the file does not begin with `# callgrind format`");
        assert_eq!(
            why(&SAMPLE.replace("totals: 189", "totals: 188")),
            "the costs of the lines are 189, the sum is 188"
        );
        let cut = SAMPLE.split("totals").next().unwrap();
        assert_eq!(why(cut), "the file has no line `totals:`, so the run has not ended");
        assert!(why(&SAMPLE.replace("11 40", "11 x")).contains("`11 x`: the cost is no number"));
        assert!(why(&SAMPLE.replace("fi=(2) ", "fi=(9)\nfi=(2) ")).contains("the number of the name is unknown"));
    }
}
