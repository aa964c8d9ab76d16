//! Whether images that a class gives to one of its tenants are for that one only: pure.
//!
//! Most images are for all tenants of a class, so that an entry without placeholders says nothing about whose they are. One with placeholders is meant for
//! the tenant that it names, or for all tenants of the namespace that it names. Another entry may still give the same images to others:
//!
//! | two tenants share | because |
//! |---|---|
//! | `registry/{tenant}/*` | both have the same name, in two namespaces |
//! | `registry/{tenant}/*` and `registry/{namespace}/{tenant}/*` | one is called as the namespace of the other |
//! | `registry/{tenant}/*` and `registry/*` | the second entry has all that the first is for |
//!
//! An image below a tenant's folder that an entry names for all is what the class says.

use super::hostnames::TenantName;
use berth_api::{
    conditions::{ConditionUpdate, IMAGES_EXCLUSIVE},
    hostnames::{NAMESPACE, TENANT},
    images,
};
use std::collections::{BTreeMap, BTreeSet};

/// The end of a pattern for all repositories of a folder.
const ALL_BELOW: &str = "/*";
/// The pattern of every image.
const EVERY: &str = "*";

/// The condition ImagesExclusive of a class with this list of images and these tenants.
pub(super) fn exclusiveness(templates: Option<&[String]>, tenants: &[TenantName]) -> ConditionUpdate {
    let Some(overlap) = find_overlap(templates.unwrap_or_default(), tenants) else {
        return ConditionUpdate::mark_true(
            IMAGES_EXCLUSIVE,
            "NoOverlap",
            "no entry of spec.sync.pods.images with a placeholder is for images that another tenant of the class may use",
        );
    };
    let Overlap { pattern, by, tenants } = overlap;
    let [owner, other] = tenants.map(|(namespace, name)| format!("{namespace}/{name}"));
    ConditionUpdate::mark_false(
        IMAGES_EXCLUSIVE,
        "ImagesShared",
        format!(
            "spec.sync.pods.images gives {pattern} to the tenant {owner}, and {by} to the tenant {other}, which may use the same images: use both {{namespace}} \
             and {{tenant}}, in a folder that no other entry has, or give each of them a class of its own"
        ),
    )
}

/// Images of one tenant that another one may use.
struct Overlap<'a> {
    /// What the first tenant gets.
    pattern: String,
    /// What the other one gets.
    by: String,
    tenants: [&'a TenantName; 2],
}

/// For whom a pattern is.
#[derive(Clone, Copy)]
struct Owner<'a> {
    tenant: &'a TenantName,
    /// Whether it is for this tenant alone, and not for all of its namespace.
    is_alone: bool,
}

impl Owner<'_> {
    /// Whether the patterns of two owners should not overlap.
    fn is_apart_from(self, other: Self) -> bool {
        self.tenant != other.tenant && (self.is_alone || other.is_alone || self.tenant.0 != other.tenant.0)
    }
}

/// The first images of one tenant that another one may use, in a fixed order: the condition must not change while nothing else does.
fn find_overlap<'a>(templates: &[String], tenants: &'a [TenantName]) -> Option<Overlap<'a>> {
    let has_placeholder = |template: &&String| template.split('/').any(|part| [TENANT, NAMESPACE].contains(&part));
    let (own, common): (Vec<&String>, Vec<&String>) = templates.iter().partition(has_placeholder);
    let common: BTreeSet<&str> = common.into_iter().map(String::as_str).collect();
    let mut owners: BTreeMap<String, Owner<'a>> = BTreeMap::new();
    for tenant in tenants {
        let (namespace, name) = tenant;
        for template in &own {
            let pattern = images::expand(template, name, namespace);
            let is_alone = template.split('/').any(|part| part == TENANT);
            let owner = Owner { tenant, is_alone };
            match owners.get_mut(&pattern) {
                Some(known) if known.is_apart_from(owner) => {
                    return Some(Overlap {
                        by: pattern.clone(),
                        pattern,
                        tenants: [known.tenant, tenant],
                    });
                }
                // All templates of a tenant come together, so that nobody else is forgotten here.
                Some(known) => known.is_alone |= is_alone && known.tenant == tenant,
                None => drop(owners.insert(pattern, owner)),
            }
        }
    }
    owners.iter().find_map(|(pattern, owner)| {
        let overlap = |by: &str, other: &'a TenantName| Overlap {
            pattern: pattern.clone(),
            by: by.to_owned(),
            tenants: [owner.tenant, other],
        };
        let of_others = patterns_above(pattern).find_map(|above| {
            let other = owners.get(&above).filter(|other| other.is_apart_from(*owner))?;
            Some(overlap(&above, other.tenant))
        });
        let for_all = || {
            let mut covering = std::iter::once(pattern.clone()).chain(patterns_above(pattern));
            let by = covering.find(|above| common.contains(above.as_str()))?;
            let mut others = tenants.iter();
            let other = others.find(|tenant| {
                let other = Owner {
                    tenant,
                    is_alone: false,
                };
                owner.is_apart_from(other)
            })?;
            Some(overlap(&by, other))
        };
        of_others.or_else(for_all)
    })
}

/// The patterns for all images of a folder above this pattern, from the next one, and that of every image.
fn patterns_above(pattern: &str) -> impl Iterator<Item = String> {
    let path = pattern.strip_suffix(ALL_BELOW).unwrap_or(pattern);
    let slashes = path.rmatch_indices('/');
    slashes
        .map(move |(slash, _)| format!("{}{ALL_BELOW}", &path[..slash]))
        .chain(std::iter::once(EVERY.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const VISION: (&str, &str) = ("team-a", "vision");
    const SPEECH: (&str, &str) = ("team-a", "speech");
    const OTHER_VISION: (&str, &str) = ("team-b", "vision");

    fn names(tenants: &[(&str, &str)]) -> Vec<TenantName> {
        let names = tenants.iter();
        names
            .map(|(namespace, name)| ((*namespace).to_owned(), (*name).to_owned()))
            .collect()
    }

    /// What two tenants get of the same images, if there are any.
    fn overlap(templates: &[&str], tenants: &[(&str, &str)]) -> Option<(String, String)> {
        let templates: Vec<String> = templates.iter().map(ToString::to_string).collect();
        let tenants = names(tenants);
        find_overlap(&templates, &tenants).map(|overlap| (overlap.pattern, overlap.by))
    }

    fn both(pattern: &str, by: &str) -> (String, String) {
        (pattern.to_owned(), by.to_owned())
    }

    #[test]
    fn images_without_placeholders_are_for_all() {
        let all = [VISION, SPEECH, OTHER_VISION];
        for templates in [
            &["docker.io/*", "nvcr.io/nvidia/*", "registry.example.com/base/cuda"][..],
            &["*"],
            &[],
        ] {
            assert_eq!(overlap(templates, &all), None, "{templates:?}");
        }
    }

    #[test]
    fn placeholders_give_tenants_images_of_their_own() {
        let all = [VISION, SPEECH, OTHER_VISION, ("a", "b"), ("b", "a"), ("a", "a")];
        for templates in [
            &["r.example.com/{namespace}/{tenant}/*"][..],
            &["r.example.com/{namespace}/*"],
            &["r.example.com/{namespace}/{tenant}"],
            &[
                "r.example.com/base/*",
                "r.example.com/teams/{namespace}/{tenant}/*",
                "docker.io/*",
            ],
            // What the class names is for all.
            &[
                "r.example.com/team-a/vision/base",
                "r.example.com/{namespace}/{tenant}/*",
            ],
            // Folders and names that only begin alike.
            &["r.example.com/t/{tenant}-x/*", "r.example.com/t/*"],
            &[
                "r.example.com/{namespace}/{tenant}/*",
                "r.example.com/team/*",
                "r.example.com/team-a",
            ],
        ] {
            assert_eq!(overlap(templates, &all), None, "{templates:?}");
        }
    }

    #[test]
    fn the_same_name_in_two_namespaces_is_the_same_folder() {
        let template = "r.example.com/{tenant}/*";
        let folder = "r.example.com/vision/*";
        assert_eq!(overlap(&[template], &[VISION, SPEECH]), None);
        assert_eq!(
            overlap(&[template], &[VISION, SPEECH, OTHER_VISION]),
            Some(both(folder, folder))
        );
    }

    #[test]
    fn names_of_tenants_and_namespaces_can_be_the_same() {
        let templates = ["r.example.com/{tenant}/*", "r.example.com/{namespace}/{tenant}/*"];
        assert_eq!(overlap(&templates, &[VISION, ("team-b", "speech")]), None);
        assert_eq!(
            overlap(&templates, &[VISION, ("team-b", "team-a")]),
            Some(both("r.example.com/team-a/vision/*", "r.example.com/team-a/*"))
        );
        let templates = ["r.example.com/{tenant}/*", "r.example.com/{namespace}/*"];
        let folder = "r.example.com/x/*";
        for tenants in [[("x", "a"), ("y", "x")], [("x", "a"), ("x", "x")]] {
            assert_eq!(overlap(&templates, &tenants), Some(both(folder, folder)), "{tenants:?}");
        }
        assert_eq!(overlap(&templates, &[("x", "x")]), None, "it is alone");
        // A folder of a namespace with those of its tenants: they are not for one of them alone.
        let templates = ["r.example.com/{namespace}/*", "r.example.com/{namespace}/{tenant}/*"];
        assert_eq!(overlap(&templates, &[VISION]), None);
        let (pattern, by) = overlap(&templates, &[VISION, SPEECH]).unwrap();
        assert!(
            pattern.starts_with("r.example.com/team-a/") && by == "r.example.com/team-a/*",
            "{pattern} {by}"
        );
    }

    #[test]
    fn an_entry_for_all_covers_what_placeholders_give() {
        let own = "r.example.com/t/{namespace}/{tenant}/*";
        let vision = "r.example.com/t/team-a/vision/*";
        for common in [
            "*",
            "r.example.com/*",
            "r.example.com/t/*",
            "r.example.com/t/team-a/*",
            vision,
        ] {
            assert_eq!(overlap(&[common, own], &[VISION]), None, "{common}");
            assert_eq!(
                overlap(&[common, own], &[VISION, OTHER_VISION]),
                Some(both(vision, common))
            );
        }
        assert_eq!(
            overlap(&["r.example.com/{tenant}", "r.example.com/vision"], &[SPEECH, VISION]),
            Some(both("r.example.com/vision", "r.example.com/vision"))
        );
        // All tenants of the namespace may use these.
        let of_namespace = ["r.example.com/{namespace}/*", "r.example.com/*"];
        assert_eq!(overlap(&of_namespace, &[VISION, SPEECH]), None);
        assert!(overlap(&of_namespace, &[VISION, OTHER_VISION]).is_some());
    }

    #[test]
    fn the_condition_names_both_tenants_and_what_to_do() {
        let tenants = names(&[VISION, OTHER_VISION]);
        let update = exclusiveness(Some(&["r.example.com/{tenant}/*".into()]), &tenants);
        assert_eq!((update.status, update.reason), (Some(false), "ImagesShared"));
        for part in [
            "team-a/vision",
            "team-b/vision",
            "r.example.com/vision/*",
            "{namespace}",
        ] {
            assert!(update.message.contains(part), "{part}: {}", update.message);
        }
        assert!(exclusiveness(Some(&[]), &tenants).is_true());
        assert!(exclusiveness(None, &tenants).is_true());
    }
}
