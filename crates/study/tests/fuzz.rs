//! Runs the fuzz bodies over their corpus, and over each of its inputs cut short and altered at every place.

mod bodies;

use std::path::Path;

#[test]
fn captures() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/captures");
    let mut inputs = 0;
    for entry in std::fs::read_dir(folder).expect("the corpus is part of the repository") {
        let input = std::fs::read(entry.expect("a readable folder").path()).expect("a readable file");
        inputs += 1;
        bodies::fuzz_captures(&input);
        for at in 0..input.len().min(512) {
            bodies::fuzz_captures(&input[..at]);
            let mut altered = input.clone();
            for value in [0, 0x7f, 0xff, input[at] ^ 1] {
                altered[at] = value;
                bodies::fuzz_captures(&altered);
            }
        }
    }
    assert!(inputs > 0, "tests/corpus/captures has no input");
}
