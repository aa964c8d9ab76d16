//! The names that a user may mean who names something that does not exist. Pure.

/// How many names are offered at most.
const MOST: usize = 3;

/// How many letters of `wrong` have to change for it to be `name`; none if these are too many for a typing error. As in cargo, a third of the
/// letters may be wrong.
pub(crate) fn distance(wrong: &str, name: &str) -> Option<usize> {
    let letters = wrong.chars().count();
    let distance = strsim::osa_distance(wrong, name);
    (distance <= letters.max(3) / 3 && distance < letters).then_some(distance)
}

/// Asks whether one of these names is meant, in the order of their ranks; none without names.
pub(crate) fn ask_for<Rank: Ord>(mut near: Vec<(Rank, String)>) -> Option<String> {
    near.sort();
    near.dedup();
    near.truncate(MOST);
    let names: Vec<String> = near.into_iter().map(|(_, name)| name).collect();
    let (last, others) = names.split_last()?;
    Some(if others.is_empty() {
        format!("did you mean {last}?")
    } else {
        format!("did you mean {} or {last}?", others.join(", "))
    })
}

/// Asks whether one of `names` is meant that are similar to `wrong`; none if none is.
pub(crate) fn ask<'a>(wrong: &str, names: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let names = names.into_iter();
    let near = names.filter_map(|name| Some((distance(wrong, name)?, name.to_owned())));
    ask_for(near.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typing_errors_are_near_and_other_names_are_not() {
        for (wrong, name, expected) in [
            ("vision", "vision", Some(0)),
            ("vison", "vision", Some(1)),
            ("visoin", "vision", Some(1)),
            ("visions-2", "vision-1", Some(2)),
            ("vision", "speech", None),
            ("vision", "vision-prod", None),
            ("ab", "ac", Some(1)),
            // One letter for another is another name.
            ("a", "b", None),
            ("", "b", None),
        ] {
            assert_eq!(distance(wrong, name), expected, "{wrong} {name}");
        }
    }

    #[test]
    fn the_nearest_names_are_offered_and_not_many() {
        let question = |names: &[&str]| ask("vison", names.iter().copied());
        assert_eq!(question(&[]), None);
        assert_eq!(question(&["speech", "audio"]), None);
        assert_eq!(question(&["speech", "vision"]).as_deref(), Some("did you mean vision?"));
        assert_eq!(
            question(&["vision", "bison", "mison", "vison", "wison"]).as_deref(),
            Some("did you mean vison, bison or mison?")
        );
        assert_eq!(question(&["vision", "vision"]).as_deref(), Some("did you mean vision?"));
        let ranked = vec![((1, true), "b/x".to_owned()), ((1, false), "z/x".to_owned())];
        assert_eq!(ask_for(ranked).as_deref(), Some("did you mean z/x or b/x?"));
    }
}
