//! Mix of message sizes, as a setting of a sweep.

use doorbell_record::SizeMix;
use doorbell_record::settings::SIZE;

use super::Swept;

/// Name of the mix of sizes.
pub(super) const SIZES: &str = "sizes";
/// Value of [`SIZES`] without a mix.
const NO_MIX: &str = "none";
/// Allowed values of [`SIZES`].
pub(super) const MIXES: &str = "none, or sizes with weights, as in 64:0.9+64K:0.1";

/// Parses a mix of sizes. [`NO_MIX`] is a mix without sizes. Values of an axis have commas between them, so sizes may
/// have a plus.
pub(super) fn parse_mix(text: &str) -> Option<SizeMix> {
    if text == NO_MIX {
        return Some(SizeMix(Vec::new()));
    }
    let row = |row: &str| {
        let (size, weight) = row.trim().split_once(':').unwrap_or((row.trim(), "1"));
        Some((SIZE.parse(size)?.whole() as usize, weight.parse().ok()?))
    };
    let mix = SizeMix(text.split(['+', ',']).map(row).collect::<Option<_>>()?);
    mix.check().is_ok().then_some(mix)
}

/// Returns the mix of sizes as a setting.
pub(super) fn described_mix(mix: Option<&SizeMix>) -> Swept {
    let shown = |mix: &SizeMix| {
        let rows: Vec<_> = mix.0.iter().map(|(bytes, weight)| format!("{bytes}:{weight}")).collect();
        rows.join("+")
    };
    Swept {
        name: SIZES,
        about: "Mix of message sizes with weights, instead of `size`",
        value: mix.map_or_else(|| NO_MIX.to_owned(), shown),
        allowed: MIXES.to_owned(),
    }
}
