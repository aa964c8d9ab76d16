//! The tables of checks by which translation denies values that could break a controller of the host, as CEL.

use super::cel;
use berth_sync_rules::translation::{
    field_checks::{Check, EXPRESSION_TYPE, FieldChecks},
    pattern::Pattern,
};

/// Whether the text `text` fits.
pub fn matches(text: &str, pattern: &Pattern) -> String {
    let quote = |expression: &str| format!("{text}.matches(r'{expression}')");
    let excluded = pattern
        .excluded
        .iter()
        .map(|expression| format!(" && !{}", quote(expression)));
    let excluded: Vec<String> = excluded.collect();
    format!(
        "({text}.size() <= {} && {}{})",
        pattern.max_length,
        quote(pattern.expression),
        excluded.concat()
    )
}

/// Whether all fields of `object` pass the checks; `prefixes` are those of [`berth_sync_rules::translation::field_checks::check`].
pub fn all_pass(object: &str, prefixes: &[&str], checks: FieldChecks) -> String {
    let passes = prefixes.iter().flat_map(|prefix| {
        checks
            .iter()
            .map(move |(steps, check)| walk(object, &format!("{prefix}{steps}"), 0, check))
    });
    passes.collect::<Vec<_>>().join(" && ")
}

/// Whether every field at `steps` that is set passes. Variables of lists within lists are told apart by their depth.
fn walk(object: &str, steps: &str, depth: usize, check: &Check) -> String {
    let mut field = object.to_owned();
    let mut rest = steps;
    while !rest.is_empty() {
        let (step, after) = rest.split_once('.').unwrap_or((rest, ""));
        if let Some(list) = step.strip_suffix("[]") {
            let item = format!("i{depth}");
            let inner = walk(&item, after, depth + 1, check);
            return format!("{}.all({item}, {inner})", cel::list(&field, list));
        }
        field = format!("{field}.?{step}");
        rest = after;
    }
    if field == object {
        passes(object, check)
    } else {
        format!(
            "{field}.optMap(v, dyn(v) == null || {}).orValue(true)",
            passes("v", check)
        )
    }
}

/// Whether `value` passes.
fn passes(value: &str, check: &Check) -> String {
    match check {
        Check::Text(pattern) => matches(value, pattern),
        Check::Number(least, most) => format!("({value} >= {least} && {value} <= {most})"),
        Check::Items(most) => format!("{value}.size() <= {most}"),
        Check::Match {
            fields,
            plain,
            expression,
        } => {
            let all = fields.iter().map(|name| {
                let (expression, plain) = (matches("t", expression), matches("t", plain));
                format!(
                    "{value}.?{name}.optMap(t, {value}.?type.orValue('') == '{EXPRESSION_TYPE}' ? {expression} : {plain}).orValue(true)"
                )
            });
            format!("({})", all.collect::<Vec<_>>().join(" && "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static WORD: Pattern = Pattern::limited("^[a-z]+$", &["x"], 9, "a word");
    static ANY: Pattern = Pattern::new("^.*$", "anything");
    static CHECKS: FieldChecks = &[
        ("a.b", Check::Number(1, 3)),
        ("a[]", Check::Text(&WORD)),
        ("a[].b[].c", Check::Items(2)),
        (
            "m",
            Check::Match {
                fields: &["value"],
                plain: &WORD,
                expression: &ANY,
            },
        ),
    ];

    #[test]
    fn expressions_pass_what_is_not_set() {
        let word = |text: &str| format!("({text}.size() <= 9 && {text}.matches(r'^[a-z]+$') && !{text}.matches(r'x'))");
        let any = "(t.size() <= 1000 && t.matches(r'^.*$'))";
        let number = "object.spec.?a.?b.optMap(v, dyn(v) == null || (v >= 1 && v <= 3)).orValue(true)";
        let list = |of: &str| format!("{of}.optMap(l, dyn(l) == null ? [] : l).orValue([])");
        let item = format!("{}.all(i0, {})", list("object.spec.?a"), word("i0"));
        let nested = format!(
            "{}.all(i0, {}.all(i1, i1.?c.optMap(v, dyn(v) == null || v.size() <= 2).orValue(true)))",
            list("object.spec.?a"),
            list("i0.?b")
        );
        let text = word("t");
        let matched = format!(
            "object.spec.?m.optMap(v, dyn(v) == null || (v.?value.optMap(t, v.?type.orValue('') == 'RegularExpression' ? {any} : {text}).orValue(true))).orValue(true)"
        );
        assert_eq!(
            all_pass("object.spec", &[""], CHECKS),
            [number, item.as_str(), nested.as_str(), matched.as_str()].join(" && ")
        );
        assert_eq!(
            all_pass("o", &["x[].", "y."], &CHECKS[..1]),
            format!(
                "{}.all(i0, i0.?a.?b.optMap(v, dyn(v) == null || (v >= 1 && v <= 3)).orValue(true)) && \
                 o.?y.?a.?b.optMap(v, dyn(v) == null || (v >= 1 && v <= 3)).orValue(true)",
                list("o.?x")
            )
        );
    }
}
