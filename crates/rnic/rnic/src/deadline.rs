//! Arithmetic of deadlines.

/// Returns the earliest of some deadlines; `None` if there is none. A deadline of [`u64::MAX`] counts as none.
///
/// A driver asks for its deadlines after each call. Comparisons of plain numbers need no branches, unlike those of
/// options.
#[inline]
pub fn earliest<const N: usize>(deadlines: [Option<u64>; N]) -> Option<u64> {
    let at_ns = deadlines.map(|deadline| deadline.unwrap_or(u64::MAX)).into_iter().fold(u64::MAX, u64::min);
    (at_ns != u64::MAX).then_some(at_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earliest_deadline_comes_first_and_none_counts_as_never() {
        assert_eq!(earliest([]), None);
        assert_eq!(earliest([None, None]), None);
        assert_eq!(earliest([None, Some(7), Some(3), None]), Some(3));
        assert_eq!(earliest([Some(0), Some(u64::MAX)]), Some(0));
    }
}
