#!/usr/bin/env bash
# Checks the manifests, compares them with those of the base of the pull request, and writes
# both to a comment and to the summary of the job. It fails for findings of FAIL_ON and if
# there is no answer, not because connections change.
set -euo pipefail
shopt -s inherit_errexit

# The comment of an earlier run is recognised by this line.
marker='<!-- kubectl-netpol -->'
# A comment has at most 65536 characters.
most=60000

work=$(mktemp -d "$RUNNER_TEMP/netpol.XXXXXX")
args=()
while IFS= read -r arg; do
  if [[ -n $arg ]]; then args+=("$arg"); fi
done <<<"${NETPOL_ARGS:-}"
check=(check -f "$NETPOL_PATH" "--fail-on=$FAIL_ON" ${args[@]+"${args[@]}"})
if [[ -n ${BASELINE:-} ]]; then check+=("--baseline=$BASELINE"); fi

# run NAME WORD... runs kubectl-netpol, with its output in files, and prints its exit code.
run() {
  local name=$1 code=0
  shift
  kubectl-netpol "$@" >"$work/$name" 2>"$work/$name.notes" || code=$?
  echo "$code"
}

# compare compares the manifests with those of the base, if it has them, and prints the exit
# code, or nothing.
compare() {
  git fetch --quiet --no-tags --depth=1 origin "$BASE"
  git worktree add --quiet --detach "$work/base" "$BASE" >&2
  if [[ -e $work/base/$NETPOL_PATH ]]; then
    run diff diff -f "$work/base/$NETPOL_PATH" -f "$NETPOL_PATH" --replace -o markdown ${args[@]+"${args[@]}"}
  fi
  git worktree remove --force "$work/base" >&2
}

# fenced NAME prints a file as text in a comment.
fenced() { printf '~~~~~~text\n%s\n~~~~~~\n' "$(cat "$1")"; }

checked=$(run findings "${check[@]}")
sarif=$(run sarif "${check[@]}" -o sarif)
changed=
if [[ -n ${BASE:-} ]]; then changed=$(compare); fi

{
  echo "$marker"
  case $changed in
    0 | 1) cat "$work/diff" ;;
    '') echo 'There is no base to compare with.' ;;
    *) echo 'The connections could not be compared:'; fenced "$work/diff.notes" ;;
  esac
  printf '\n### Network policies: findings\n\n'
  if [[ $checked = 2 ]]; then fenced "$work/findings.notes"; else fenced "$work/findings"; fi
} >"$work/all"
head -c "$most" "$work/all" | iconv -c -f UTF-8 -t UTF-8 >"$work/comment"
if [[ $(wc -c <"$work/all") -gt $most ]]; then printf '\n~~~~~~\n\nThe rest is in the log.\n' >>"$work/comment"; fi

cat "$work/all" "$work/findings.notes"
cat "$work/comment" >>"$GITHUB_STEP_SUMMARY"
if [[ $sarif != 2 ]]; then echo "sarif=$work/sarif" >>"$GITHUB_OUTPUT"; fi
case $changed in
  0) echo changes=false ;;
  1) echo changes=true ;;
esac >>"$GITHUB_OUTPUT"

# comment writes the comment, over that of an earlier run.
comment() {
  local issues=repos/$GITHUB_REPOSITORY/issues id
  id=$(gh api --paginate "$issues/$PULL_REQUEST/comments" --jq ".[] | select(.body | startswith(\"$marker\")) | .id")
  if [[ -n $id ]]; then
    gh api --silent --method PATCH "$issues/comments/${id%%$'\n'*}" -F "body=@$work/comment"
  else
    gh api --silent --method POST "$issues/$PULL_REQUEST/comments" -F "body=@$work/comment"
  fi
}

if [[ -n ${PULL_REQUEST:-} ]] && ! comment; then
  # The token of a pull request from a fork may only read.
  echo "::warning::no comment could be written; the summary of the job has it"
fi
if [[ $changed = 2 ]]; then exit 2; fi
exit "$checked"
