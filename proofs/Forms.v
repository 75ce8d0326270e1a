(** What the engines evaluate in float32, and that it has no more roundings than the certificates count.

    The forms of native are those of native/engine. Those of onednn, ONNX Runtime and OpenVINO were read off their kernels
    and off what they execute (docs/arithmetic.md, 4): that they evaluate these is an assumption, which the conformance
    suite tests. *)

From Coq Require Import ZArith Reals List Lia Lra Psatz.
From Flocq Require Import Core.
From Intact Require Import TieFree Float32 Contract Roundings.
Import ListNotations.
Open Scope R_scope.

(** [form] evaluates v + z with at most the roundings k, for biases up to B and residuals up to C. *)
Definition has_roundings (form : R -> expression) (v z : R) (k : roundings) (B C : R) : Prop :=
  (forall W, exact (form W) = v + z)
  /\ (forall W, Rabs v <= W -> Rabs (v + z) <= W -> bounded (form W))
  /\ (forall W, 0 <= W -> cost (form W) <= counted k W B C)
  /\ (forall W, (depth (form W) <= deepest)%nat)
  /\ (forall W, (nodes (form W) <= most_nodes)%nat).

(** n more roundings of the whole. *)
Fixpoint again (n : nat) (e : expression) (W : R) : expression :=
  match n with O => e | S m => Rounded (again m e W) W end.

Section Forms.

(** The exact products times the multiplier, bias and residual, in steps; the zero point added in float32 (or 0). *)
Variables (P Q S z B C : R).
Hypothesis bias : Rabs Q <= B.
Hypothesis residual : Rabs S <= C.
Hypothesis byte : 0 <= z <= 255.

Definition plus_zero (e : expression) (W : R) : expression := Rounded (Sum e (Leaf z 255 0)) W.

(** *** native, ONNX Runtime: fl(fl(acc)·M) + z, M stored *)
Definition exact_sum_form (W : R) := plus_zero (Leaf (P + Q) W 3) W.

(** *** native, ONNX Runtime: the same and fl(r·(x − z)), r stored *)
Definition exact_sum_residual_form (W : R) :=
  plus_zero (Rounded (Sum (Leaf (P + Q) (W + C) 3) (Leaf S C 2)) W) W.

(** *** onednn: fl(fl(acc)·M) + bias, the residual in a fused multiply-add, z *)
Definition onednn_sum (W : R) := Rounded (Sum (Leaf P (W + B + C) 3) (Leaf Q B 1)) (W + C).
Definition onednn_form (W : R) := plus_zero (Rounded (Sum (onednn_sum W) (Leaf S C 1)) W) W.

(** *** onednn, leaky: the sum, times the slope, which is stored *)
Definition onednn_leaky_form (W : R) :=
  plus_zero (again 2 (Rounded (Sum (Leaf P (W + B) 3) (Leaf Q B 1)) W) W) W.

(** *** One exact integer times one multiplier of three stored scales (mul, mean, pools) *)
Definition scaled_form (W : R) := plus_zero (Leaf P W 5) W.

(** *** One exact sum, divided by an integer *)
Definition divided_form (W : R) := Leaf P W 1.

(** *** OpenVINO: R(x·γ + δ) of FakeQuantize: ends 3, the product 1 and δ 1 on [inner]; γ 2 and the sum 1 on the result *)
Definition fake_quantize (e : expression) (inner W : R) := again 3 (again 5 e inner) W.

Definition openvino_form (W : R) := plus_zero (Rounded (Sum (Leaf P (W + B) 4) (Leaf Q B 1)) W) W.
Definition openvino_leaky_form (W : R) :=
  plus_zero (again 2 (Rounded (Sum (Leaf P (W + B) 4) (Leaf Q B 1)) W) W) W.
Definition openvino_fused_form (W : R) :=
  Sum (fake_quantize (again 1 (Sum (again 1 (Sum (Leaf P (W + B + C) 5) (Leaf Q B 2)) (W + C)) (Leaf S C 0)) (W + C)) (W + C) W)
    (Leaf z 255 0).
Definition openvino_scaled_form (W : R) := Sum (Leaf P W 9) (Leaf z 255 0).

Lemma between W x y : Rabs (x + y) <= W -> Rabs y <= C -> Rabs x <= W + C.
Proof. intros h1 h2. apply Rabs_le_inv in h1, h2. apply Rabs_le. lra. Qed.

Ltac sizes :=
  repeat match goal with h : Rabs _ <= _ |- _ => apply Rabs_le_inv in h end;
  repeat split; try (apply Rabs_le); try lra.

Ltac prove_roundings :=
  pose proof bias; pose proof residual;
  assert (0 <= B) by (pose proof (Rabs_pos Q); lra);
  assert (0 <= C) by (pose proof (Rabs_pos S); lra);
  split; [intros; simpl; try ring; lra |
  split; [intros W ? ?; simpl; sizes |
  split; [intros W ?; unfold counted; simpl; lra |
  split; intros; vm_compute; lia]]].

Theorem exact_sum_affine : has_roundings exact_sum_form (P + Q) z FORMS_affine B C.
Proof. prove_roundings. Qed.

Theorem exact_sum_leaky : has_roundings exact_sum_form (P + Q) z FORMS_leaky B C.
Proof. prove_roundings. Qed.

Theorem exact_sum_scaled : has_roundings exact_sum_form (P + Q) z FORMS_scaled B C.
Proof. prove_roundings. Qed.

Theorem exact_sum_fused : has_roundings exact_sum_residual_form (P + Q + S) z FORMS_fused B C.
Proof. prove_roundings. Qed.

Theorem onednn_affine : has_roundings onednn_form (P + Q + S) z FORMS_affine B C.
Proof. prove_roundings. Qed.

Theorem onednn_leaky : has_roundings onednn_leaky_form (P + Q) z FORMS_leaky B C.
Proof. prove_roundings. Qed.

Theorem scaled : has_roundings scaled_form P z FORMS_scaled B C.
Proof. prove_roundings. Qed.

Theorem mean : has_roundings scaled_form P z FORMS_mean B C.
Proof. prove_roundings. Qed.

Theorem openvino_affine : has_roundings openvino_form (P + Q) z OPENVINO_affine B C.
Proof. prove_roundings. Qed.

Theorem openvino_leaky : has_roundings openvino_leaky_form (P + Q) z OPENVINO_leaky B C.
Proof. prove_roundings. Qed.

Theorem openvino_fused : has_roundings openvino_fused_form (P + Q + S) z OPENVINO_fused B C.
Proof. prove_roundings. Qed.

Theorem openvino_scaled : has_roundings openvino_scaled_form P z OPENVINO_scaled B C.
Proof. prove_roundings. Qed.

End Forms.

Theorem resize P B C : has_roundings (divided_form P) P 0 FORMS_resize B C.
Proof.
split; [intros; simpl; ring |]. split; [intros W ? ?; simpl; assumption |].
split; [intros W ?; unfold counted; simpl; lra |]. split; intros; vm_compute; lia.
Qed.

(** OpenVINO: the exact sum times 1/D, rounded, and corrected by what remains of the sum. *)
Theorem openvino_resize P B C : has_roundings (divided_form P) P 0 OPENVINO_resize B C.
Proof. exact (resize P B C). Qed.

(** ** Sums of terms *)

Definition sizes_of (terms : list (R * R)) : R := fold_right (fun t total => snd t + total) 0 terms.
Definition total (terms : list (R * R)) : R := fold_right (fun t rest => fst t + rest) 0 terms.
Definition known (terms : list (R * R)) : Prop := Forall (fun t => Rabs (fst t) <= snd t) terms.

Lemma total_size terms : known terms -> Rabs (total terms) <= sizes_of terms.
Proof.
induction 1; simpl; [rewrite Rabs_R0; lra |]. eapply Rle_trans; [apply Rabs_triang |]. lra.
Qed.

Lemma sizes_positive terms : known terms -> 0 <= sizes_of terms.
Proof. intros h. pose proof (total_size terms h). pose proof (Rabs_pos (total terms)). lra. Qed.

(** native, ONNX Runtime: fl(r·(x − z)) of every term, r stored, one after the other; a term is a number and its bound. *)
Fixpoint chain (e : expression) (terms : list (R * R)) (C : R) : expression :=
  match terms with
  | [] => e
  | (x, c) :: rest => chain (Rounded (Sum e (Leaf x c 2)) C) rest C
  end.

Lemma chain_exact e terms C : exact (chain e terms C) = exact e + total terms.
Proof. revert e. induction terms as [| [x c] rest step]; intros; simpl; [ring |]. rewrite step. simpl. ring. Qed.

Lemma chain_bounded e terms C :
  bounded e -> known terms -> Rabs (exact e) + sizes_of terms <= C -> bounded (chain e terms C).
Proof.
revert e. induction terms as [| [x c] rest step]; intros e fine facts room; simpl in *; [assumption |].
inversion facts as [| ? ? first others]; subst. simpl in *. pose proof (sizes_positive rest others).
apply step; [| assumption |]; simpl.
- repeat split; try assumption. eapply Rle_trans; [apply Rabs_triang |]. lra.
- pose proof (Rabs_triang (exact e) x). lra.
Qed.

Lemma chain_cost e terms C : cost (chain e terms C) = cost e + 2 * sizes_of terms + INR (length terms) * C.
Proof.
revert e. induction terms as [| [x c] rest step]; intros; [simpl; lra |]. cbn [chain length]. rewrite step, S_INR. simpl. lra.
Qed.

Lemma chain_depth e terms C : (2 <= depth e)%nat -> depth (chain e terms C) = (depth e + length terms)%nat.
Proof.
revert e. induction terms as [| [x c] rest step]; intros e deep; [simpl; lia |]. cbn [chain length]. rewrite step; simpl; lia.
Qed.

Lemma chain_nodes e terms C : nodes (chain e terms C) = (nodes e + length terms)%nat.
Proof.
revert e. induction terms as [| [x c] rest step]; intros; [simpl; lia |]. cbn [chain length]. rewrite step. simpl. lia.
Qed.

Section Sums.

Variables (first last : R * R) (between : list (R * R)) (z : R).
Let terms := first :: between ++ [last].
Hypothesis facts : known terms.
Hypothesis few : (length between <= 5)%nat.
Hypothesis byte : 0 <= z <= 255.
Let C := sizes_of terms.

Definition chained_form (W : R) :=
  Rounded (Sum (Rounded (Sum (chain (Leaf (fst first) (snd first) 2) between C) (Leaf (fst last) (snd last) 2)) W)
    (Leaf z 255 0)) W.

Lemma sizes_append a b : sizes_of (a ++ b) = sizes_of a + sizes_of b.
Proof. induction a as [| t rest step]; simpl; [ring |]. rewrite step. ring. Qed.

Lemma total_append a b : total (a ++ b) = total a + total b.
Proof. induction a as [| t rest step]; simpl; [ring |]. rewrite step. ring. Qed.

Theorem native_sum : has_roundings chained_form (total terms) z FORMS_sum 0 C.
Proof.
pose proof facts as all. unfold terms, known in all. inversion all as [| ? ? one others]; subst.
apply Forall_app in others. destruct others as [middle ending]. inversion ending as [| ? ? final _]; subst.
assert (amount : C = snd first + sizes_of between + snd last).
{ unfold C, terms. simpl. rewrite sizes_append. simpl. ring. }
assert (sum : total terms = fst first + total between + fst last).
{ unfold terms. simpl. rewrite total_append. simpl. ring. }
pose proof (sizes_positive between middle). pose proof (Rabs_pos (fst first)). pose proof (Rabs_pos (fst last)).
apply le_INR in few. simpl in few.
split; [| split; [| split; [| split]]].
- intros. unfold chained_form. cbn [exact]. rewrite chain_exact. cbn [exact]. rewrite sum. ring.
- intros W v_size t_size. unfold chained_form. cbn [bounded exact]. rewrite chain_exact. cbn [exact]. rewrite sum in *.
  split; [split; [split; [split |] |] | ].
  + apply chain_bounded; [simpl; assumption | assumption |]. simpl. lra.
  + assumption.
  + assumption.
  + apply Rabs_le. lra.
  + assumption.
- intros W wide. unfold chained_form, counted. cbn [cost]. rewrite chain_cost. simpl.
  assert (INR (length between) * C <= 5 * C) by (apply Rmult_le_compat_r; lra). lra.
- intros. unfold chained_form. cbn [depth]. rewrite chain_depth by (simpl; lia). unfold deepest.
  simpl. assert (length between <= 5)%nat by (apply INR_le; simpl; lra). lia.
- intros. unfold chained_form. cbn [nodes]. rewrite chain_nodes. unfold most_nodes. simpl.
  assert (length between <= 5)%nat by (apply INR_le; simpl; lra). lia.
Qed.

End Sums.

(** ONNX Runtime's QLinearAdd: fma(x, r, fma(x', r', z − fma(r, z_x, r'·z_x'))), r and r' stored. *)
Section QLinearAdd.

Variables (x zx x' zx' z c c' : R). (* r·x, r·z_x, r'·x', r'·z_x' in steps; c = 255·r, c' = 255·r' *)
Hypothesis first : Rabs x <= c /\ Rabs zx <= c /\ Rabs (x - zx) <= c.
Hypothesis second : Rabs x' <= c' /\ Rabs zx' <= c' /\ Rabs (x' - zx') <= c'.
Hypothesis byte : 0 <= z <= 255.

Definition zeros (W : R) := Rounded (Sum (Leaf (- zx) c 1) (Leaf (- zx') c' 2)) (c + c').
Definition qlinear_add_form (W : R) :=
  Rounded (Sum (Leaf x c 1) (Rounded (Sum (Leaf x' c' 1) (Rounded (Sum (Leaf z 255 0) (zeros W)) (W + (c + c')))) (W + c))) W.

Theorem qlinear_add : has_roundings qlinear_add_form (x - zx + (x' - zx')) z FORMS_sum 0 (c + c').
Proof.
destruct first as (? & ? & ?). destruct second as (? & ? & ?).
pose proof (Rabs_pos x). pose proof (Rabs_pos x').
split; [intros; simpl; ring |].
split; [intros W ? ?; simpl;
  repeat match goal with h : Rabs _ <= _ |- _ => apply Rabs_le_inv in h end; repeat split; apply Rabs_le; lra |].
split; [intros W ?; unfold counted; simpl; lra |]. split; intros; vm_compute; lia.
Qed.

End QLinearAdd.

(** OpenVINO: one term is the output of a FakeQuantize (ends 3, scale 2, product and sum 2, shift 3), the sum and a negative
    unit 2 on the terms; the FakeQuantize over it: ends 3 and δ 1 on result and terms, product 1 on the terms. *)
Section OpenVinoSum.

Variables (x c z : R).
Hypothesis size : Rabs x <= c.
Hypothesis byte : 0 <= z <= 255.

Definition openvino_sum_form (W : R) :=
  Sum (again 3 (again 4 (again 1 (again 2 (Leaf x c 10) c) c) (W + c)) W) (Leaf z 255 0).
Definition openvino_mean_form (W : R) :=
  Sum (again 3 (again 4 (again 1 (Leaf x c 2) c) (W + c)) W) (Leaf z 255 0).

Theorem openvino_sum : has_roundings openvino_sum_form x z OPENVINO_sum 0 c.
Proof.
pose proof (Rabs_pos x).
split; [intros; simpl; ring |].
split; [intros W ? ?; simpl; apply Rabs_le_inv in size, H0, H1; repeat split; apply Rabs_le; lra |].
split; [intros W ?; unfold counted; simpl; lra |]. split; intros; vm_compute; lia.
Qed.

Theorem openvino_mean : has_roundings openvino_mean_form x z OPENVINO_mean 0 c.
Proof.
pose proof (Rabs_pos x).
split; [intros; simpl; ring |].
split; [intros W ? ?; simpl; apply Rabs_le_inv in size, H0, H1; repeat split; apply Rabs_le; lra |].
split; [intros W ?; unfold counted; simpl; lra |]. split; intros; vm_compute; lia.
Qed.

End OpenVinoSum.
