//! Archives in the format of `tar` (POSIX.1-1988, ustar). They have neither times nor owners.

use std::collections::BTreeMap;

/// Size of a block in bytes.
const BLOCK: usize = 512;
/// Blocks of zeros at the end of an archive.
const END_BLOCKS: usize = 2;
/// Maximum length of the last part of a path, and of the part before it, in bytes.
const NAME_MAX: usize = 100;
const PREFIX_MAX: usize = 155;

/// Returns an archive of these files, in the order of their paths.
///
/// # Errors
///
/// A path is too long for the format. The error is a sentence.
pub fn tar(files: &BTreeMap<String, Vec<u8>>) -> Result<Vec<u8>, String> {
    let mut archive = Vec::new();
    for (path, content) in files {
        archive.extend(header(path, content.len())?);
        archive.extend(content);
        archive.resize(archive.len().next_multiple_of(BLOCK), 0);
    }
    archive.resize(archive.len() + END_BLOCKS * BLOCK, 0);
    Ok(archive)
}

/// Returns the header of a file.
fn header(path: &str, bytes: usize) -> Result<[u8; BLOCK], String> {
    let (prefix, name) = match path.len() {
        ..=NAME_MAX => ("", path),
        _ => path.rsplit_once('/').unwrap_or(("", path)),
    };
    if name.len() > NAME_MAX || prefix.len() > PREFIX_MAX {
        return Err(format!(
            "the path {path} is too long for an archive: allowed are {NAME_MAX} B after the last slash and \
             {PREFIX_MAX} B before it"
        ));
    }
    let mut header = [0; BLOCK];
    let mut put = |at: usize, text: &str| header[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(0, name);
    put(100, "0000644\0"); // mode
    put(108, "0000000\0"); // user
    put(116, "0000000\0"); // group
    put(124, &format!("{bytes:011o}\0"));
    put(136, "00000000000\0"); // time
    put(148, "        "); // the checksum counts as spaces
    put(156, "0"); // regular file
    put(257, "ustar\x0000");
    put(345, prefix);
    let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    Ok(header)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_has_names_sizes_and_contents() {
        let long = format!("{}/{}", "d".repeat(120), "f".repeat(90));
        let files = [("a/b.json", &b"{}"[..]), (long.as_str(), &[7; 513][..])];
        let archive = tar(&files.map(|(path, content)| (path.to_owned(), content.to_vec())).into()).unwrap();
        // Two headers, one and two blocks of content, and two blocks of zeros.
        assert_eq!(archive.len(), (2 + 3 + 2) * BLOCK);
        assert_eq!(&archive[..8], b"a/b.json");
        assert_eq!(&archive[124..135], b"00000000002");
        assert_eq!(&archive[BLOCK..BLOCK + 2], b"{}");
        assert_eq!(&archive[2 * BLOCK..2 * BLOCK + 90], "f".repeat(90).as_bytes());
        assert_eq!(&archive[2 * BLOCK + 345..2 * BLOCK + 465], "d".repeat(120).as_bytes());
        assert!(archive[5 * BLOCK..].iter().all(|&byte| byte == 0));
        let sum: u32 = archive[..BLOCK]
            .iter()
            .enumerate()
            .map(|(at, &byte)| match at {
                148..156 => u32::from(b' '),
                _ => u32::from(byte),
            })
            .sum();
        assert_eq!(&archive[148..154], format!("{sum:06o}").as_bytes());
    }

    #[test]
    fn a_path_that_does_not_fit_is_an_error() {
        let path = "x".repeat(101);
        let error = tar(&[(path.clone(), Vec::new())].into()).unwrap_err();
        assert_eq!(
            error,
            format!(
                "the path {path} is too long for an archive: allowed are 100 B after the last slash and 155 B before it"
            )
        );
    }
}
