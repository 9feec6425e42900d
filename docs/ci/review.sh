#!/bin/sh
# Review the plans that a branch touches: rules, and what they change in seconds and dollars.
#
#   docs/ci/review.sh                                    # against origin/main
#   docs/ci/review.sh --base main --out review.md
#   docs/ci/review.sh --format github                    # findings as annotations of GitHub Actions
#
# Looked at is every plan (of a job or of groups) that the branch adds, changes, renames or removes, and every plan that
# it does not touch but whose inputs it does, or the policy above it: such a plan is stale, or may no longer be allowed.
# What was a plan at the base is one here, whatever has become of it.
# Of each: `rlplan check`, and `rlplan diff --markdown` against the base. All of it goes into one
# comment file (default: rlplan-review.md), which begins with a hidden marker by which a CI step finds its own earlier
# comment. In GitHub Actions the number of plans is the step's output `plans`.
#
# Exit codes: 0 no plan has a finding, 1 some has not, or a policy cannot be read, 2 the review
# could not be made.
# Needs git and rlplan. The base must be there with its history: `fetch-depth: 0` in actions/checkout.
set -eu

base=origin/main out=rlplan-review.md format=text
usage() { echo "usage: review.sh [--base REVISION] [--out FILE] [--format text|github]" >&2; exit 2; }
stop() { echo "error: $*" >&2; exit 2; }
while [ $# -gt 0 ]; do
  case $1 in
    --base | --out | --format) [ $# -gt 1 ] || usage ;;
    *) usage ;;
  esac
  case $1 in
    --base) base=$2 ;;
    --out) out=$2 ;;
    --format) format=$2 ;;
  esac
  shift 2
done
case $format in text | github) ;; *) usage ;; esac
command -v git > /dev/null || stop "git is not installed"
command -v rlplan > /dev/null || stop "rlplan is not installed; from its checkout: pip install ."
case $out in /*) ;; *) out=$PWD/$out ;; esac
root=$(git rev-parse --show-toplevel 2> /dev/null) || stop "this folder is in no git repository"
cd "$root"
# What the branch did since it left the base; what happened on the base since then is not the branch's.
from=$(git merge-base "$base" HEAD 2> /dev/null) ||
  stop "no common history with '$base'; fetch it (actions/checkout: fetch-depth: 0), or name another --base"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 2' HUP INT TERM

# The mark of a plan; jobs, clusters and profiles have other ones.
MARK="^($(printf '\357\273\277'))?([{][[:blank:]]*)?[\"']?rlplan(_groups)?[\"']?[[:blank:]]*:"
LIMIT=55000 # bytes; GitHub takes comments of 65,536 characters

# Names as git has them, one in a line; git quotes none of them then.
lines() { tr '\n\000' '\001\n'; }

# Each file that differs between the base and the working tree: a line with its status, then its path, then its new path
# if it was renamed.
git diff --name-status --find-renames -z "$from" -- | lines > "$work/changed"
git ls-files -z -- '*.yaml' '*.yml' | lines > "$work/documents"
# What was a plan at the base is looked at whatever it is now.
git grep --no-color -z -l -E -e "$MARK" "$from" -- | lines | sed "s/^$from://" > "$work/were" || :
! grep -q "$(printf '\001')" "$work/changed" "$work/documents" || stop "the name of a file has a line break in it; rename it"

is_plan() { [ -f "$1" ] && grep -Eq -e "$MARK" < "$1"; }
was_plan() { grep -Fxq -e "$1" "$work/were"; }

# Paths of a plan's inputs, from the root of the repository.
inputs_of() {
  folder=$(dirname -- "$1") awk '
    BEGIN { folder = ENVIRON["folder"] }
    /^[^ #]/ { inside = /^["'"'"']?inputs["'"'"']?:/ }
    inside && match($0, /path["'"'"']?:[ ]*("[^"]*"|'"'"'[^'"'"']*'"'"'|[^,} ][^,}]*)/) {
      path = substr($0, RSTART, RLENGTH)
      sub(/^path["'"'"']?:/, "", path)
      gsub(/^[ "'"'"']+|[ "'"'"']+$/, "", path)
      n = split(folder "/" path, part, "/"); m = 0
      for (i = 1; i <= n; i++) {
        if (part[i] == ".." && m > 0 && kept[m] != "..") m--
        else if (part[i] != "." && part[i] != "") kept[++m] = part[i]
      }
      path = ""
      for (i = 1; i <= m; i++) path = path (i > 1 ? "/" : "") kept[i]
      print path
    }' < "$1"
}

# The policies of a plan: in its folder and above it, nearest first.
policies_of() {
  folder=$(dirname -- "$1")
  while [ "$folder" != . ]; do
    echo "$folder/rlplan.policy.yaml"
    folder=$(dirname -- "$folder")
  done
  echo rlplan.policy.yaml
}

# Whether the branch changed an input of a plan, or a policy in its folder or above.
touched_beside() { { inputs_of "$1"; policies_of "$1"; } | grep -Fxq -f "$work/names"; }

# The plans to look at, each a line with its old path and one with its new path; an empty one: it is new, or gone.
while IFS= read -r status && IFS= read -r old; do
  new=$old
  case $status in R* | C*) IFS= read -r new ;; esac
  printf '%s\n' "$old" "$new" >> "$work/names"
  case $status in A* | C*) old='' ;; D*) new='' ;; esac
  [ -z "$old" ] || was_plan "$old" || is_plan "$new" || continue
  [ -n "$old" ] || is_plan "$new" || continue
  printf '%s\n' "$old" "$new"
done < "$work/changed" > "$work/plans"
[ -f "$work/names" ] || : > "$work/names"
while IFS= read -r path; do
  if ! grep -Fxq -e "$path" "$work/names" && is_plan "$path" && touched_beside "$path"; then
    printf '%s\n' "$path" "$path"
  fi
done < "$work/documents" >> "$work/plans"

# Text as the value of a workflow command, so that a file's name ends none and begins none.
escaped() { printf '%s' "$1" | sed -e 's/%/%25/g' -e 's/:/%3A/g' -e 's/,/%2C/g'; }

# A file as a block that its text cannot end, for the comment.
quoted() { echo; cut -c 1-500 "$1" | head -n 20 | sed 's/^/    /'; echo; }

annotate() { # FILE TITLE TEXT
  [ "$format" = text ] || printf '::error file=%s,line=1,title=%s::%s\n' "$(escaped "$1")" "$2" "$3"
}

# Lines of text of files, none of which begins as a workflow command does.
indented() { sed 's/^/  | /' "$1"; }

: > "$work/body"
: > "$work/policies"
printf 'rlplan_policy: 1\n' > "$work/no.policy.yaml"
plans=0 failed=0 broken=0

# Sets `policy` to the policy of a plan if it cannot be read, else to nothing. Such a one is told once.
look_at_policy() {
  policies_of "$1" > "$work/above"
  policy=
  while IFS= read -r found; do
    if [ -f "$found" ]; then policy=$found; break; fi
  done < "$work/above"
  [ -n "$policy" ] || return 0
  if ! grep -Fxq -e "ok $policy" -e "broken $policy" "$work/policies"; then
    if rlplan check -- "$policy" > "$work/check" 2>&1; then
      echo "ok $policy" >> "$work/policies"
    else
      echo "broken $policy" >> "$work/policies"
      broken=$((broken + 1))
      printf 'policy %s: cannot be read\n' "$policy"
      indented "$work/check"
      [ "$format" = text ] || rlplan check --format github -- "$policy" || :
      { printf '\n**The policy cannot be read; no plan below it is held against it:**\n'; quoted "$work/check"; } >> "$work/body"
    fi
  fi
  if grep -Fxq -e "ok $policy" "$work/policies"; then policy=; fi
}

while IFS= read -r old && IFS= read -r new; do
  name=${new:-$old} faults='' policy=''
  plans=$((plans + 1))
  : > "$work/found"
  if [ -n "$new" ]; then
    look_at_policy "$new"
    set -- ${policy:+--policy "$work/no.policy.yaml"}
    valid=yes
    rlplan check "$@" -- "$new" > "$work/check" 2>&1 || {
      valid=no
      faults=findings
      cat "$work/check" >> "$work/found"
      [ "$format" = text ] || rlplan check "$@" --format github -- "$new" || :
    }
  fi
  before=none
  if [ -n "$old" ]; then before=$from:$old; fi
  # The base's plan may be of a format that this version of rlplan no longer reads; the new one is shown all the same.
  rlplan diff --markdown -- "$before" "${new:-none}" > "$work/diff" 2> "$work/error" || {
    [ -n "$faults" ] || cat "$work/error" >> "$work/found"
    rlplan diff --markdown -- none "${new:-none}" > "$work/diff" 2> /dev/null || {
      : > "$work/diff"
      if [ -n "$new" ] && [ $valid = yes ]; then
        faults="${faults:+$faults, }no plan any more"
        annotate "$new" "rlplan diff" "a plan at the base, and none now"
      fi
    }
  }
  [ -z "$faults" ] || failed=$((failed + 1))
  printf 'plan %s: %s\n' "$name" "${faults:-ok}${policy:+, but not held against $policy}"
  indented "$work/found"
  {
    echo
    if [ -s "$work/diff" ]; then sed 1d "$work/diff"; else echo "### \`$name\`"; fi
    if [ -n "$policy" ]; then printf '\nNot held against its policy, which cannot be read.\n'; fi
    if [ -n "$faults" ]; then printf '\n**Does not pass: %s**\n' "$faults"; fi
    if [ -s "$work/found" ]; then quoted "$work/found"; fi
  } > "$work/part"
  if [ $(($(wc -c < "$work/body") + $(wc -c < "$work/part"))) -le $LIMIT ]; then
    cat "$work/part" >> "$work/body"
  else
    echo "$name" >> "$work/left"
  fi
done < "$work/plans"

{
  echo '<!-- rlplan review -->'
  case $plans in
    0) echo "No plan differs from \`$base\`." ;;
    *) echo "**rlplan:** $plans plan(s) reviewed against \`$base\`, $failed of them do not pass." ;;
  esac
  [ "$broken" -eq 0 ] || printf '\n%s policy file(s) cannot be read.\n' "$broken"
  cat "$work/body"
  if [ -f "$work/left" ]; then
    printf '\nLeft out, since a comment ends somewhere: %s plan(s); the log has their findings.\n' "$(wc -l < "$work/left")"
  fi
} > "$out"
unread=
[ "$broken" -eq 0 ] || unread=", $broken policy file(s) cannot be read"
echo "$plans plan(s) against $base, $failed do not pass${unread}; the comment is in $out"
if [ -n "${GITHUB_OUTPUT:-}" ]; then echo "plans=$plans" >> "$GITHUB_OUTPUT"; fi
[ "$((failed + broken))" -eq 0 ] || exit 1
