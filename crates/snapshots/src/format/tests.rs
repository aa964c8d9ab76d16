use super::{BATCH_BYTES, Decoder, Encoder, Fault, HEADER, MAGIC, MAX_ENTRY_BYTES, VERSION};
use crate::entry::{Entry, Written, hex};
use flate2::{Compression, read::ZlibDecoder, write::ZlibEncoder};
use proptest::{collection, prelude::*};
use sha2::{Digest as _, Sha256};
use std::{
    collections::BTreeMap,
    io::{Read as _, Write as _},
};

/// What the API server has below the prefix of a tenant, and what no API server would write.
const KEYS: [&str; 6] = [
    "\0",
    "../../other/secrets/a",
    "/",
    "configmaps/a",
    "secrets/vision/key",
    "\u{10ffff}",
];

fn entry(key: &str, value: &[u8]) -> Entry {
    Entry {
        key: key.as_bytes().to_vec(),
        value: value.to_vec(),
    }
}

fn few() -> Vec<Entry> {
    let mut entries: Vec<_> = KEYS.iter().map(|key| entry(key, key.repeat(3).as_bytes())).collect();
    entries.sort_by(|one, other| one.key.cmp(&other.key));
    entries[1].value = Vec::new();
    entries
}

fn encode(entries: &[Entry], batch: usize) -> (Vec<u8>, Written) {
    let mut encoder = Encoder::new();
    let mut stored = Vec::new();
    for batch in entries.chunks(batch) {
        stored.extend(encoder.push(batch).unwrap());
    }
    let (rest, written) = encoder.finish().unwrap();
    stored.extend(rest);
    (stored, written)
}

fn decode(stored: &[u8], written: &Written, piece: usize) -> Result<Vec<Entry>, Fault> {
    let mut decoder = Decoder::new(written);
    let mut entries = Vec::new();
    for piece in stored.chunks(piece) {
        let mut rest = piece;
        while decoder.decode(&mut rest, &mut entries)? {}
        assert!(rest.is_empty(), "all of it is taken");
    }
    decoder.finish()?;
    Ok(entries)
}

/// What is stored for these records, whatever they are.
fn stored(records: &[u8]) -> Vec<u8> {
    let mut stored = MAGIC.to_vec();
    stored.extend(VERSION.to_be_bytes());
    let mut stream = ZlibEncoder::new(stored, Compression::fast());
    stream.write_all(records).unwrap();
    stream.finish().unwrap()
}

fn record(key: &[u8], value: &[u8]) -> Vec<u8> {
    let length = |part: &[u8]| u32::try_from(part.len()).unwrap().to_be_bytes();
    [&length(key)[..], &length(value)[..], key, value].concat()
}

fn end(objects: u64, bytes: u64) -> Vec<u8> {
    [&[0; 4][..], &objects.to_be_bytes()[..], &bytes.to_be_bytes()[..]].concat()
}

fn written(objects: u64, bytes: u64) -> Written {
    Written {
        objects,
        bytes,
        stored_bytes: 0,
        checksum: String::new(),
    }
}

#[track_caller]
fn assert_damaged(result: Result<Vec<Entry>, Fault>, words: &str) {
    match result {
        Err(Fault::Damaged(reason)) if reason.contains(words) => {}
        other => panic!("{other:?} instead of {words:?}"),
    }
}

#[test]
fn the_form_is_what_is_documented() {
    let entries = [entry("a", b"xyz"), entry("b/c", b"")];
    let (stored, written) = encode(&entries, 1);
    assert_eq!(&stored[..HEADER], b"BERTHSNP\x00\x00\x00\x01");
    let mut records = Vec::new();
    ZlibDecoder::new(&stored[HEADER..]).read_to_end(&mut records).unwrap();
    let expected = b"\0\0\0\x01\0\0\0\x03axyz\0\0\0\x03\0\0\0\0b/c\0\0\0\0\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x07";
    assert_eq!(records, expected);
    let expected = Written {
        objects: 2,
        bytes: 7,
        stored_bytes: stored.len() as u64,
        checksum: hex(&Sha256::digest(&stored)),
    };
    assert_eq!(written, expected);
    assert_eq!(written.checksum.len(), 64);
}

#[test]
fn a_snapshot_without_objects_can_be_read() {
    let (stored, written) = encode(&[], 1);
    assert_eq!((written.objects, written.bytes), (0, 0));
    assert_eq!(decode(&stored, &written, 1000), Ok(Vec::new()));
}

#[test]
fn large_snapshots_come_in_batches() {
    let value = vec![7; BATCH_BYTES / 3];
    let entries: Vec<_> = (0..10).map(|number| entry(&format!("{number}"), &value)).collect();
    let (stored, written) = encode(&entries, 4);
    let mut decoder = Decoder::new(&written);
    let (mut rest, mut largest, mut found) = (stored.as_slice(), 0, Vec::new());
    loop {
        let mut batch = Vec::new();
        let has_more = decoder.decode(&mut rest, &mut batch).unwrap();
        largest = batch.len().max(largest);
        found.extend(batch);
        if !has_more {
            break;
        }
    }
    decoder.finish().unwrap();
    assert_eq!((found, largest), (entries, 3));
}

#[test]
fn few_bytes_give_much_until_the_end() {
    for length in [31 << 10, 32 << 10, 33 << 10, 64 << 10, 100 << 10, 1 << 20] {
        let entries = [entry("a", b"v"), entry("b", &vec![0; length])];
        let (stored, written) = encode(&entries, 1);
        for piece in [1, 100, stored.len()] {
            assert!(decode(&stored, &written, piece).unwrap() == entries, "{length} {piece}");
        }
    }
}

#[test]
fn a_truncated_snapshot_is_damaged_wherever_it_ends() {
    let (stored, written) = encode(&few(), 2);
    for length in 0..stored.len() {
        for piece in [1, 7, stored.len()] {
            assert_damaged(decode(&stored[..length], &written, piece), "");
        }
    }
}

#[test]
fn what_follows_a_snapshot_is_damage() {
    let (stored, written) = encode(&few(), 2);
    for more in [&b"\0"[..], stored.as_slice(), &stored[HEADER..]] {
        for piece in [1, 5, 1 << 20] {
            assert_damaged(
                decode(&[stored.as_slice(), more].concat(), &written, piece),
                "follows its end",
            );
        }
    }
}

#[test]
fn changed_bytes_give_no_other_objects() {
    let entries = few();
    let (stored, written) = encode(&entries, 2);
    for at in 0..stored.len() {
        for bit in 0..8 {
            let mut changed = stored.clone();
            changed[at] ^= 1 << bit;
            // Some bits of a zlib stream mean nothing: those the checksum of all is for.
            match decode(&changed, &written, 11) {
                Ok(found) => assert_eq!(found, entries, "bit {bit} of byte {at}"),
                Err(Fault::Newer(_)) => assert!((MAGIC.len()..HEADER).contains(&at)),
                Err(Fault::Damaged(_)) => {}
            }
        }
    }
}

#[test]
fn keys_ascend_and_are_not_empty() {
    for (keys, words) in [
        (&["b", "a"][..], "object 2 is not above"),
        (&["a", "a"][..], "object 2 is not above"),
        (&["a", "b", "aa"][..], "object 3 is not above"),
    ] {
        let entries: Vec<_> = keys.iter().map(|key| entry(key, b"v")).collect();
        let error = Encoder::new().push(&entries).unwrap_err();
        assert!(error.contains(words), "{error}");
        let bytes: usize = keys.iter().map(|key| key.len() + 1).sum();
        let (objects, bytes) = (keys.len() as u64, bytes as u64);
        let mut records: Vec<_> = keys.iter().flat_map(|key| record(key.as_bytes(), b"v")).collect();
        records.extend(end(objects, bytes));
        assert_damaged(decode(&stored(&records), &written(objects, bytes), 1000), words);
    }
    let error = Encoder::new().push(&[entry("", b"v")]).unwrap_err();
    assert!(error.contains("the key of object 1 is empty"), "{error}");
    // There an empty key would be the end.
    let records = [record(b"", b"v"), end(1, 1)].concat();
    assert_damaged(decode(&stored(&records), &written(1, 1), 1000), "");
}

#[test]
fn what_follows_the_last_object_is_damage() {
    let records = |more: &[u8]| [record(b"a", b"v"), end(1, 2), more.to_vec()].concat();
    let expected = [entry("a", b"v")];
    assert_eq!(decode(&stored(&records(b"")), &written(1, 2), 9).unwrap(), expected);
    for more in [b"\0".to_vec(), record(b"b", b""), end(1, 2)] {
        for piece in [1, 1000] {
            assert_damaged(decode(&stored(&records(&more)), &written(1, 2), piece), "");
        }
    }
}

#[test]
fn counts_have_to_agree() {
    let (stored_bytes, found) = encode(&few(), 2);
    let (objects, bytes) = (found.objects, found.bytes);
    for (objects, bytes) in [
        (objects, bytes + 1),
        (objects, bytes - 1),
        (objects + 1, bytes),
        (objects - 1, bytes),
        (0, 0),
    ] {
        assert_damaged(decode(&stored_bytes, &written(objects, bytes), 1000), "");
    }
    // The stored ones alone are wrong.
    let records = [record(b"a", b"v"), end(2, 2)].concat();
    assert_damaged(
        decode(&stored(&records), &written(1, 2), 1000),
        "it counts 2 objects of 2 bytes",
    );
}

#[test]
fn a_newer_format_is_said_to_be_newer() {
    let (mut stored, found) = encode(&few(), 2);
    stored[HEADER - 1] = 2;
    stored[HEADER..].fill(0xaa);
    for piece in [1, HEADER, 1000] {
        assert_eq!(decode(&stored, &found, piece), Err(Fault::Newer(2)));
    }
    stored[HEADER - 1] = 0;
    assert_damaged(decode(&stored, &found, 1000), "the number 0");
    stored[0] = b'b';
    assert_damaged(decode(&stored, &found, 1), "does not begin");
}

#[test]
fn large_objects_have_a_limit() {
    let largest = [entry("k", &vec![1; MAX_ENTRY_BYTES - 1])];
    let (bytes, found) = encode(&largest, 1);
    assert!(decode(&bytes, &found, 1 << 20).unwrap() == largest);
    let error = Encoder::new()
        .push(&[entry("k", &vec![1; MAX_ENTRY_BYTES])])
        .unwrap_err();
    assert!(error.contains("object 1 has 10485761 bytes"), "{error}");
    // Its bytes are not waited for.
    let mut record = record(b"k", b"");
    record[4..8].copy_from_slice(&u32::MAX.to_be_bytes());
    assert_damaged(
        decode(&stored(&record), &written(1, u64::MAX), 1000),
        "more than 10485760",
    );
}

#[test]
fn what_is_decompressed_is_bounded_by_what_was_written() {
    let mut records = record(b"k", b"");
    records[4..8].copy_from_slice(&u32::try_from(MAX_ENTRY_BYTES - 1).unwrap().to_be_bytes());
    records.resize(8 << 20, 0);
    let bomb = stored(&records);
    assert!(bomb.len() < 1 << 17);
    assert_damaged(
        decode(&bomb, &written(1, 100), bomb.len()),
        "more in it than was written",
    );
}

#[test]
fn debug_output_has_no_values() {
    let text = format!("{:?}", entry("secrets/vision/key", b"password"));
    assert_eq!(text, "Entry(18 + 8 bytes)");
}

proptest! {
    #[test]
    fn what_is_written_is_read(
        entries in collection::btree_map(
            collection::vec(any::<u8>(), 1..40),
            collection::vec(any::<u8>(), 0..300),
            0..40,
        ),
        batch in 1_usize..20,
        piece in 1_usize..400,
    ) {
        let entries: BTreeMap<Vec<u8>, Vec<u8>> = entries;
        let entries: Vec<_> = entries.into_iter().map(|(key, value)| Entry { key, value }).collect();
        let (stored, written) = encode(&entries, batch);
        prop_assert_eq!(written.objects, entries.len() as u64);
        prop_assert_eq!(written.stored_bytes, stored.len() as u64);
        let found = decode(&stored, &written, piece);
        prop_assert_eq!(&found, &Ok(entries));
        // Whatever the keys are, they are below the prefix that they are appended to, and none is the prefix.
        let prefix = b"/registry/7c1d/";
        for Entry { key, .. } in found.unwrap() {
            let restored = [&prefix[..], &key[..]].concat();
            prop_assert!(restored.starts_with(prefix) && restored.len() > prefix.len());
        }
    }

    #[test]
    fn nothing_that_is_stored_panics(
        bytes in collection::vec(any::<u8>(), 0..600),
        is_stream in any::<bool>(),
        piece in 1_usize..100,
        objects in 0_u64..5,
    ) {
        let bytes = if is_stream { stored(&bytes) } else { bytes };
        if let Ok(entries) = decode(&bytes, &written(objects, 600), piece) {
            prop_assert_eq!(entries.len() as u64, objects);
            prop_assert!(entries.is_sorted_by(|one, other| one.key < other.key));
        }
    }
}
