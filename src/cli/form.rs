//! Forms of the report on one run: its own, and those of a suite that other programs read.

use std::sync::LazyLock;

use clap::ValueEnum;
use clap::builder::PossibleValue;
use zprobe::report::render::Format;
use zprobe::report::render::suite::SuiteFormat;

/// Form of the report on one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// One that only a run has.
    Run(Format),
    /// One that a run has as a suite of one case.
    Suite(SuiteFormat),
}

impl ValueEnum for Form {
    fn value_variants<'a>() -> &'a [Self] {
        static FORMS: LazyLock<Vec<Form>> = LazyLock::new(|| {
            let run = Format::ALL.iter().map(|format| Form::Run(*format));
            run.chain(SuiteFormat::OF_A_RUN.map(Form::Suite)).collect()
        });
        &FORMS
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        match self {
            Self::Run(format) => format.to_possible_value(),
            Self::Suite(format) => format.to_possible_value(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_two_forms_have_the_same_name() {
        let names = Form::value_variants().iter().filter_map(Form::to_possible_value);
        let names: BTreeSet<String> = names.map(|value| value.get_name().to_owned()).collect();
        assert_eq!(names.len(), Form::value_variants().len());
    }
}
