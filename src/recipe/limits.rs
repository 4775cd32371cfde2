//! Every limit of recipes, in one place. A recipe or an expression over a limit is refused before it is pinned.

/// The version of the recipe language that this binary writes and reads.
pub const LANGUAGE_VERSION: u32 = 1;
/// The most bytes of a recipe after `include`: all files of its bundle together, as the JSON text that is pinned (256 KiB).
pub const MAX_RECIPE_BYTES: usize = 256 << 10;
/// The most files of a bundle.
pub const MAX_FILES: usize = 256;
/// The most levels of nested nodes, `include` counted.
pub const MAX_NESTING: usize = 32;
/// The most nodes after `include`.
pub const MAX_NODES: usize = 1_000;
/// The most levels of YAML or JSON nesting: more than any recipe within [`MAX_NESTING`] needs.
pub const MAX_VALUE_DEPTH: usize = 100;
/// The most YAML values of one file after aliases were resolved: an alias bomb ends here.
pub const MAX_YAML_VALUES: usize = 50_000;
/// The most mistakes that one check reports.
pub const MAX_REPORTED: usize = 50;
/// The longest id of a node, in characters.
pub const MAX_ID: usize = 64;
/// The longest expression between `${{` and `}}`, in bytes.
pub const MAX_EXPRESSION_BYTES: usize = 1 << 10;
/// The deepest nesting of brackets, unary operators and choices in an expression.
pub const MAX_EXPRESSION_NESTING: usize = 16;
/// The most operators in an expression.
pub const MAX_EXPRESSION_OPERATORS: usize = 64;
/// The stack of the thread that parses and evaluates expressions.
pub const EXPRESSION_STACK_BYTES: usize = 16 << 20;
/// The most steps that the expressions of one value may take in all; each element that is visited, compared or copied
/// is one.
pub const MAX_EVALUATION_STEPS: u64 = 2_000_000;
/// The most bytes that one evaluated template may come to: what a task could not record anyway.
pub const MAX_RENDERED_BYTES: usize = 1 << 20;
/// How much of an expression an error quotes, in characters.
pub const MAX_QUOTED: usize = 200;
/// The most attempts of a node's `retry`.
pub const MAX_ATTEMPTS: u32 = 1_000;
/// The longest `timeout` and back-off of a node, in milliseconds: 365 days.
pub const MAX_NODE_MILLIS: i64 = 31_536_000_000;
/// The most transitions of a state machine in a row without a task.
pub const MAX_IDLE_TRANSITIONS: u32 = 10_000;
/// The most bytes of a result.
pub const MAX_RESULT_BYTES: usize = 1 << 20;
/// The most bytes of a JSON Schema of a job type or an op.
pub const MAX_SCHEMA_BYTES: usize = 64 << 10;
/// The most rules of such a schema, counted with everything that they refer to.
pub const MAX_SCHEMA_RULES: usize = 2_000;
/// The most bytes that one `pattern` of it may take once it is compiled.
pub const MAX_SCHEMA_PATTERN_BYTES: usize = 1 << 20;
