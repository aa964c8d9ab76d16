//! Pages of the documentation whose commands and files a test uses.

/// Where a command of a page is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Where the reader works: in a block that begins with ` ```sh `.
    Here,
    /// On each node: in a block that begins with ` ```sh node `.
    EachNode,
}

/// A block of commands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// The heading that it stands under.
    pub heading: String,
    /// Where it is run.
    pub place: Place,
    /// Its lines.
    pub text: String,
}

/// The blocks of commands in a Markdown text, in their order. Blocks of other languages, and those without one, are left out.
///
/// # Errors
/// A block of commands has another word behind `sh`, or has no end.
pub fn parse_blocks(markdown: &str) -> Result<Vec<Block>, String> {
    let (mut blocks, mut heading) = (Vec::new(), String::new());
    // The block whose end is not there yet: none of its own if its commands are not run.
    let mut open: Option<Option<Block>> = None;
    for line in markdown.lines() {
        match (&mut open, line.strip_prefix("```")) {
            (Some(_), Some("")) => blocks.extend(open.take().flatten()),
            (Some(block), _) => {
                if let Some(block) = block {
                    block.text.push_str(line);
                    block.text.push('\n');
                }
            }
            (None, Some(info)) => {
                let place = match info.split_whitespace().collect::<Vec<_>>().as_slice() {
                    ["sh"] => Some(Place::Here),
                    ["sh", "node"] => Some(Place::EachNode),
                    ["sh", ..] => return Err(format!("```{info}: use ```sh or ```sh node")),
                    _ => None,
                };
                open = Some(place.map(|place| Block {
                    heading: heading.clone(),
                    place,
                    text: String::new(),
                }));
            }
            (None, None) => {
                if let Some(text) = line
                    .trim_start_matches('#')
                    .strip_prefix(' ')
                    .filter(|_| line.starts_with('#'))
                {
                    text.trim().clone_into(&mut heading);
                }
            }
        }
    }
    match open {
        Some(_) => Err(format!("the last block under {heading:?} has no end")),
        None => Ok(blocks),
    }
}

/// The first block of YAML in a Markdown text that has these words.
pub fn find_yaml<'a>(markdown: &'a str, words: &str) -> Option<&'a str> {
    let blocks = markdown.split("```yaml\n").skip(1);
    let mut blocks = blocks.filter_map(|rest| rest.split_once("\n```").map(|(block, _)| block));
    blocks.find(|block| block.contains(words))
}

/// The first block of commands in a Markdown text that has these words, of any language and also in a list.
pub fn find_commands<'a>(markdown: &'a str, words: &str) -> Option<&'a str> {
    let blocks = markdown.split("```").skip(1).step_by(2);
    // The first line names the language.
    let mut blocks = blocks.filter_map(|block| block.split_once('\n').map(|(_, commands)| commands));
    blocks.find(|commands| commands.contains(words))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_found_with_their_headings() {
        let page = "# Page\n\n```sh\none\n# a comment\n```\n\n## Nodes\n\n```\nnot run\n```\n\n```yaml\na: 1\n```\n\n```sh node\ntwo\n```\n";
        let block = |heading: &str, place, text: &str| Block {
            heading: heading.into(),
            place,
            text: text.into(),
        };
        let expected = [
            block("Page", Place::Here, "one\n# a comment\n"),
            block("Nodes", Place::EachNode, "two\n"),
        ];
        assert_eq!(parse_blocks(page).unwrap(), expected);
    }

    #[test]
    fn yaml_is_found_by_its_words() {
        let page = "a: 0\n```yaml\na: 1\n```\n```sh\na: 2\n```\n\n```yaml\nb: 3\na: 3\n```\n";
        assert_eq!(find_yaml(page, "a: "), Some("a: 1"));
        assert_eq!(find_yaml(page, "b: "), Some("b: 3\na: 3"));
        assert_eq!(find_yaml(page, "a: 2"), None);
    }

    #[test]
    fn commands_are_found_by_their_words() {
        let page = "two\n```\none\n```\n1. A step:\n\n   ```sh\n   two\n   ```\n";
        assert_eq!(find_commands(page, "one"), Some("one\n"));
        assert_eq!(find_commands(page, "two").map(str::trim), Some("two"));
        assert_eq!(find_commands(page, "step"), None);
    }

    #[test]
    fn mistakes_are_errors() {
        assert!(parse_blocks("```sh nodes\none\n```\n").unwrap_err().contains("sh node"));
        assert!(parse_blocks("# Page\n```sh\none\n").unwrap_err().contains("has no end"));
    }
}
