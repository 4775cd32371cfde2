//! What holds for every template: bounded, quoted in part, and never a crash.

use proptest::prelude::*;

use super::*;

fn trial() -> Trial {
    let numbers: Vec<String> = (0..2_000).map(|n| n.to_string()).collect();
    let text = "x".repeat(100_000);
    Trial::new(&format!(
        "{{\"inputs\": {{\"many\": [{}], \"n\": 1, \"text\": {text:?}}}}}",
        numbers.join(",")
    ))
    .expect("values")
}

fn refusal(template: &str) -> TemplateError {
    match trial().evaluate(template) {
        Err(TrialError::Template(error)) => error,
        other => panic!("{template}: {other:?}"),
    }
}

#[test]
fn an_expression_that_would_run_for_ever_ends_at_its_steps() {
    for costly in [
        "${{ inputs.many.map(a, inputs.many.map(b, inputs.many.map(c, a + b + c))) }}",
        "${{ inputs.many.exists(a, inputs.many.exists(b, inputs.many.exists(c, a + b + c < 0))) }}",
        "${{ inputs.many.all(a, inputs.many == inputs.many) }}",
        "${{ inputs.many.map(a, inputs.many + inputs.many) }}",
        "${{ inputs.many.map(a, inputs.text + inputs.text) }}",
        "${{ inputs.many.map(a, inputs.text.matches('x*y')) }}",
    ] {
        let refused = refusal(costly);
        assert_eq!(refused.code(), "expression_too_costly", "{costly}: {refused}");
    }
    // One value shares its steps: many cheap expressions are a costly one.
    let many = "${{ inputs.many.all(a, a >= 0) }}".repeat(500);
    assert_eq!(refusal(&many).code(), "expression_too_costly");
    assert_eq!(
        trial().evaluate("${{ inputs.many.filter(a, a > 1997).map(a, a) }}").expect("cheap").as_ref(),
        "[1998,1999]"
    );
}

#[test]
fn what_is_too_large_to_be_recorded_is_not_made() {
    let long = "${{ inputs.text }}".repeat(11);
    assert_eq!(refusal(&long).code(), "template_too_large");
    assert_eq!(refusal("${{ inputs.text + '\\u0000' }}").code(), "template_unstorable");
}

#[test]
fn an_error_quotes_no_more_than_200_characters_of_an_expression() {
    let long = format!("${{{{ inputs.nope + '{}' }}}}", "é".repeat(400));
    let TemplateError::Unresolved { path, expression } = refusal(&long) else { panic!("unresolved") };
    assert_eq!((path.as_str(), expression.chars().count()), ("inputs.nope", 201));
    assert!(expression.ends_with('…'));
}

#[test]
fn a_text_with_a_broken_escape_is_told_in_words() {
    for text in [r#"${{ "\ud800" }}"#, r#"${{ "\U00110000" }}"#] {
        let error = Template::compile(text, &trial()).expect_err(text);
        assert!(error.contains("escape") && !error.contains("Invalid"), "{text}: {error}");
    }
}

#[test]
fn a_condition_is_true_or_false_and_nothing_else() {
    let trial = trial();
    let holds = |text: &str| Template::compile(text, &trial).expect(text).holds(&trial);
    assert_eq!(holds("${{ inputs.n == 1 }}"), Ok(true));
    assert_eq!(holds("${{ inputs.n > 1 }}"), Ok(false));
    for other in ["${{ inputs.n }}", "${{ 'true' }}", "${{ null }}"] {
        assert_eq!(holds(other).expect_err(other).code(), "expression_failed", "{other}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Whatever stands between the braces: an answer, the same twice, and no crash.
    #[test]
    fn no_text_makes_the_parser_or_the_evaluation_give_up(
        words in prop::collection::vec(
            prop::sample::select(vec![
                "inputs", ".", "n", "[", "]", "(", ")", "{", "}", "'a'", "\"", "'", "1", "1.5", "+", "-", "*", "/", "%",
                "?", ":", "==", "<", "in", "!", "&&", "||", ",", "map", "all", "size", "has", "x", "@", "`", "#", "é",
                "\\", "null", "true", "r'", "b'", "1u", "0x", "..", "$", "\n", " ",
            ]),
            0..24,
        )
    ) {
        let text = format!("${{{{ {} }}}}", words.concat());
        let trial = Trial::new(r#"{"inputs": {"n": 1, "x": [1, 2]}}"#).expect("values");
        let first = trial.evaluate(&text);
        prop_assert_eq!(&first, &trial.evaluate(&text));
        if let Err(error) = first {
            prop_assert!(!error.to_string().contains("gave up"), "{}: {}", text, error);
        }
    }
}
