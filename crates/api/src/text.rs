//! Texts for people, parts of which others write: servers and webhooks of tenants, and who names objects.

/// Most bytes of the message of an Event: API servers reject a longer note of `events.k8s.io/v1`.
pub const MAX_NOTE: usize = 1024;

/// The text without control characters, except line breaks and tabs: the others become `\u{fffd}`. A terminal does what control characters say:
/// it changes or hides other lines, or types into the shell.
pub fn printable(text: &str) -> String {
    let is_control = |letter: char| letter.is_control() && !matches!(letter, '\n' | '\t');
    text.chars()
        .map(|letter| if is_control(letter) { '\u{fffd}' } else { letter })
        .collect()
}

/// The text as [`printable`] writes it, in one line: line breaks, tabs and characters that change the direction of what follows become `\u{fffd}`
/// as well. Somebody who chooses a name could write lines and columns of a list otherwise.
pub fn one_line(text: &str) -> String {
    let breaks =
        |letter: char| matches!(letter, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    text.chars()
        .map(|letter| {
            if letter.is_control() || breaks(letter) {
                '\u{fffd}'
            } else {
                letter
            }
        })
        .collect()
}

/// The beginning of the text as [`printable`] writes it, up to the last character that ends within this many bytes.
pub fn printable_start(text: &str, bytes: usize) -> String {
    let mut start = printable(&text[..text.floor_char_boundary(bytes)]);
    // What takes the place of a control character is longer.
    start.truncate(start.floor_char_boundary(bytes));
    start
}

/// What an Event carries of a message.
pub fn event_note(message: &str) -> String {
    printable_start(message, MAX_NOTE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_carries_as_many_bytes_as_api_servers_accept() {
        let of = |letter: &str, count: usize| letter.repeat(count);
        for (message, note) in [
            (of("x", 1024), of("x", 1024)),
            (of("x", 1025), of("x", 1024)),
            (of("ü", 512), of("ü", 512)),
            // 1,000 characters have 3,000 bytes.
            (of("語", 1000), of("語", 341)),
            (of("😀", 257), of("😀", 256)),
            (format!("x{}", of("ü", 512)), format!("x{}", of("ü", 511))),
            (of("\x1b", 1024), of("\u{fffd}", 341)),
        ] {
            assert!(note.len() <= MAX_NOTE);
            assert_eq!(event_note(&message), note);
        }
    }

    #[test]
    fn what_a_terminal_would_do_is_not_kept() {
        for (text, expected) in [
            (
                "denied:\n\tno\x1b[2J\u{9b}31m\x07 ä",
                "denied:\n\tno\u{fffd}[2J\u{fffd}31m\u{fffd} ä",
            ),
            ("a\r\u{7f}\u{85}b – é", "a\u{fffd}\u{fffd}\u{fffd}b – é"),
        ] {
            assert_eq!(printable(text), expected);
            assert_eq!(printable(expected), expected);
        }
    }

    #[test]
    fn a_name_stays_in_its_line() {
        for (text, expected) in [
            ("alice\n  User bob\t8", "alice\u{fffd}  User bob\u{fffd}8"),
            (
                "a\u{2028}b\u{202e}c\u{2066}d\x1b[2J",
                "a\u{fffd}b\u{fffd}c\u{fffd}d\u{fffd}[2J",
            ),
            ("jürgen@例え.jp – é", "jürgen@例え.jp – é"),
        ] {
            assert_eq!(one_line(text), expected);
            assert_eq!(one_line(expected), expected);
        }
    }

    #[test]
    fn a_text_is_cut_between_characters_and_never_longer_than_said() {
        for (text, bytes, expected) in [
            ("äöü", 6, "äöü"),
            ("äöü", 5, "äö"),
            ("äöü", 4, "äö"),
            ("a😀", 4, "a"),
            ("a😀", 5, "a😀"),
            ("\x1b\x1bab", 4, "\u{fffd}"),
            ("\x1b", 2, ""),
            ("", 0, ""),
        ] {
            let start = printable_start(text, bytes);
            assert_eq!(start, expected, "{text:?} {bytes}");
            assert_eq!(printable_start(&start, bytes), start, "{text:?} {bytes}");
        }
    }
}
