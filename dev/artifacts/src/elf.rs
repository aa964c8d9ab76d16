//! What a program is: for which architecture, and whether it needs shared libraries.

/// Offset and value of fields of the ELF header and its program headers, from the System V ABI (64 bits, little endian).
const CLASS_64: (usize, u8) = (4, 2);
const LITTLE_ENDIAN: (usize, u8) = (5, 1);
const MACHINE: usize = 18;
const PROGRAM_HEADERS: usize = 32;
const PROGRAM_HEADER_SIZE: usize = 54;
const PROGRAM_HEADER_COUNT: usize = 56;
/// Type of the program header that names the loader of shared libraries.
const INTERPRETER: u32 = 3;

/// A program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Program {
    /// Its architecture, as images name it.
    pub architecture: &'static str,
    /// Whether it runs without shared libraries.
    pub is_static: bool,
}

/// Reads the headers of a program. `None` if the bytes are no 64-bit little-endian ELF file for a known architecture.
pub fn read(bytes: &[u8]) -> Option<Program> {
    let has = |(offset, value): (usize, u8)| bytes.get(offset) == Some(&value);
    if !bytes.starts_with(b"\x7fELF") || !has(CLASS_64) || !has(LITTLE_ENDIAN) {
        return None;
    }
    // Values of e_machine.
    let architecture = match number(bytes, MACHINE, 2)? {
        62 => "amd64",
        183 => "arm64",
        _ => return None,
    };
    let start = usize::try_from(number(bytes, PROGRAM_HEADERS, 8)?).ok()?;
    let size = usize::try_from(number(bytes, PROGRAM_HEADER_SIZE, 2)?).ok()?;
    let count = usize::try_from(number(bytes, PROGRAM_HEADER_COUNT, 2)?).ok()?;
    let mut is_static = true;
    for at in 0..count {
        let offset = at.checked_mul(size)?.checked_add(start)?;
        is_static &= number(bytes, offset, 4)? != u64::from(INTERPRETER);
    }
    Some(Program {
        architecture,
        is_static,
    })
}

/// A little-endian number of `length` bytes, at most eight.
fn number(bytes: &[u8], offset: usize, length: usize) -> Option<u64> {
    let field = bytes.get(offset..offset.checked_add(length)?)?;
    Some(
        field
            .iter()
            .rev()
            .fold(0, |number, byte| (number << 8) | u64::from(*byte)),
    )
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The headers of a program: no code.
    pub(crate) fn program(machine: u8, is_static: bool) -> Vec<u8> {
        let mut bytes = vec![0; 64 + 2 * 56];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        bytes[MACHINE] = machine;
        bytes[PROGRAM_HEADERS] = 64;
        bytes[PROGRAM_HEADER_SIZE] = 56;
        bytes[PROGRAM_HEADER_COUNT] = 2;
        // The first loads a segment.
        bytes[64] = 1;
        bytes[64 + 56] = if is_static { 1 } else { 3 };
        bytes
    }

    #[test]
    fn architecture_and_libraries_are_in_the_headers() {
        for (machine, architecture) in [(62, "amd64"), (183, "arm64")] {
            for is_static in [true, false] {
                let expected = Program {
                    architecture,
                    is_static,
                };
                assert_eq!(read(&program(machine, is_static)), Some(expected));
            }
        }
    }

    #[test]
    fn this_program_is_of_this_machine() {
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(
            read(&own).unwrap().architecture,
            berth_local::images::host_architecture()
        );
    }

    #[test]
    fn other_files_are_no_programs() {
        let mut big_endian = program(62, true);
        big_endian[5] = 2;
        let mut cut = program(62, true);
        cut.truncate(100);
        for bytes in [&b""[..], b"#!/bin/sh\n", &program(8, true), &big_endian, &cut] {
            assert_eq!(read(bytes), None);
        }
    }
}
